#include "programs/environment.hpp"
#include "programs/json.hpp"
#include "programs/perf_mesh.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <functional>

namespace verbena::programs {
namespace {

const char* meaning(MeshPattern pattern) noexcept {
  switch (pattern) {
    case MeshPattern::kPingPong: return "one way, half of a round trip";
    case MeshPattern::kExchange: return "a round, until all others' bytes are here";
    default: return "of a poll that finds nothing";
  }
}

const char* operations_of(MeshPattern pattern) noexcept {
  switch (pattern) {
    case MeshPattern::kPingPong: return "round trips";
    case MeshPattern::kExchange: return "rounds";
    case MeshPattern::kStream: return "operations to each peer";
    default: return "polls";
  }
}

const char* plural(MeshBy by) noexcept { return by == MeshBy::kWrite ? "writes" : "messages"; }

}  // namespace

std::string mesh_announcement(const MeshArguments& a) {
  std::string text = fmt::format("verbena-perf: mesh of {} processes, {}", a.mesh.processes, to_string(a.pattern));
  if (a.moves_bytes()) text += fmt::format(" of {} of {} B", plural(a.by()), a.bytes);
  if (a.pattern != MeshPattern::kJoin)
    text += fmt::format(", {} {} after {} to warm up", a.iterations, operations_of(a.pattern), a.warm_up);
  if (a.mesh.batch > 1) text += fmt::format(", batches of {}", a.mesh.batch);
  return text + '\n';
}

std::string mesh_text(const MeshResult& result) {
  const MeshArguments& a = result.arguments;
  std::string text;
  if (result.ticks.count() != 0) text += latency_text(result.latency(), meaning(a.pattern));
  if (a.moves_bytes())
    text += fmt::format("  all processes together: {:.0f} {}/s, {}/s\n", result.per_s(result.messages), plural(a.by()),
                        human_bytes(result.bytes_per_s()));
  text += fmt::format("  joined within {}; {} of memory in each process, {} for each peer\n",
                      human_time(result.join_seconds * 1e9), human_bytes(result.memory_bytes),
                      human_bytes(result.memory_bytes / (a.mesh.processes - 1)));
  text += fmt::format("  {}; {}", result.description,
                      result.cpus.empty() ? "on any cpu" : fmt::format("on cpu {}", fmt::join(result.cpus, ", ")));
  if (result.ticks.count() != 0)
    text += fmt::format("; reading the clock is {:.0f} ns, in {}", result.clock_ns, clock_text(a.clock_every));
  return text + fmt::format("\n  {}\n", environment_text(result.environment));
}

std::string mesh_json(const MeshResult& result) {
  const MeshArguments& a = result.arguments;
  return json_line("test", "mesh", "pattern", to_string(a.pattern), "by", to_string(a.by()), "processes",
                   a.mesh.processes, "bytes", a.bytes, "iterations", a.iterations, "warm_up", a.warm_up, "batch",
                   a.mesh.batch, "depth", a.mesh.depth, "in_flight", a.mesh.operations, "wait", a.wait(), "clock_every",
                   a.clock_every, "description", result.description, "cpus", json_array(result.cpus, std::identity()),
                   "latency", latency_json(result.latency()), "clock_ns", Fixed{result.clock_ns, 1}, "seconds",
                   Fixed{result.seconds, 6}, "operations", result.operations, "operations_per_s",
                   Fixed{result.per_s(result.operations), 1}, "messages", result.messages, "messages_per_s",
                   Fixed{result.per_s(result.messages), 1}, "bytes_per_s", Fixed{result.bytes_per_s(), 0},
                   "join_seconds", Fixed{result.join_seconds, 6}, "memory_bytes", result.memory_bytes, "environment",
                   environment_json(result.environment));
}

}  // namespace verbena::programs
