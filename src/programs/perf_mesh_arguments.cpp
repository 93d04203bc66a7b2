#include "programs/line.hpp"
#include "programs/options.hpp"
#include "programs/perf_mesh.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace verbena::programs {
namespace {

/// The port in "host:port".
std::optional<std::uint16_t> port_of(std::string_view entry) {
  const std::string_view digits = entry.substr(entry.rfind(':') + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool is_port = error == std::errc{} && end == digits.data() + digits.size() && digits.size() != entry.size();
  return is_port && port != 0 ? std::optional(port) : std::nullopt;
}

void add_processes(CLI::App& command, MeshArguments& a) {
  add_number(command, "-N,--processes", a.mesh.processes, "processes, all started here unless --id is given", 2,
             kPerfMostProcesses);
  CLI::Option* id = command.add_option("--id", a.id, "be this process; the others are started by hand")
                        ->check(whole_number(0, kPerfMostProcesses - 1));
  CLI::Option* directory =
      command.add_option("--directory", a.directory, "directory that all processes see, to find each other by")
          ->type_name("DIRECTORY")
          ->needs(id);
  command.add_option("--hosts", a.hosts, "where each process listens, in the order of their ids")
      ->type_name("HOST:PORT,...")
      ->delimiter(',')
      ->needs(id)
      ->excludes(directory);
  command.add_option("--job", a.mesh.job, "tells meshes in one --directory apart")->type_name("NAME");
  command.add_option("-d,--device", a.mesh.device, "NIC: soft, or an RDMA device such as mlx5_0")
      ->type_name("soft or DEVICE");
  add_allowed_uids(command, a.mesh.allowed_uids, "let processes of this user join too, by number");
  add_key_file(command, a.mesh.key_file, "file of keys, in all processes: each proves that it has one");
  command
      .add_option_function<std::uint32_t>(
          "--timeout-ms", [&a](std::uint32_t ms) { a.timeout = std::chrono::milliseconds{ms}; },
          "longest wait for the others to join, and for a peer that is to answer")
      ->check(whole_number(1, 86'400'000))
      ->default_str(std::to_string(a.timeout.count()));
}

void add_traffic(CLI::App& command, MeshArguments& a) {
  using enum MeshPattern;
  add_choice(command, "--pattern", a.pattern, {kPingPong, kExchange, kStream, kPoll, kJoin},
             "ping-pong, exchange, stream, poll or join", "what the processes do (default ping-pong)");
  command.add_option("-s,--size", a.bytes, "bytes of a message or write, such as 64K")
      ->transform(byte_size(1, kPerfMostMeshWrite))
      ->capture_default_str();
  const auto take_by = [&a](const std::string& word) {
    if (word != to_string(MeshBy::kMessage) && word != to_string(MeshBy::kWrite))
      throw CLI::ValidationError("--by", wrong_value("message or write", word));
    a.chosen_by = word == to_string(MeshBy::kWrite) ? MeshBy::kWrite : MeshBy::kMessage;
  };
  command
      .add_option_function<std::string>("--by", take_by,
                                        "how the bytes get there (default: by messages as long as they can be)")
      ->type_name("message or write");
  add_number(command, "-n,--iterations", a.iterations, "operations that are measured; of a stream, to each peer", 1,
             std::uint64_t{1} << 40);
  add_number(command, "--warm-up", a.warm_up, "operations before them", 0, std::uint64_t{1} << 40);
  add_number(command, "--clock-every", a.clock_every, "operations to one reading of the clock", 1, 1000);
  add_number(command, "--batch", a.mesh.batch, "posts to one peer that share a doorbell", 1, 32);
  add_number(command, "--depth", a.mesh.depth, "messages of each peer on the way, or not released", 4, 4096);
  add_number(command, "--operations", a.mesh.operations, "operations under way to each peer", 1, 2000);
  CLI::Option* yield = command.add_flag("--yield", a.yields, "wait by polling, and yield the cpu between polls");
  add_wait_option(command, a.mesh.wait, "processes")->excludes(yield);
}

}  // namespace

const char* to_string(MeshPattern pattern) noexcept {
  switch (pattern) {
    case MeshPattern::kPingPong: return "ping-pong";
    case MeshPattern::kExchange: return "exchange";
    case MeshPattern::kStream: return "stream";
    case MeshPattern::kPoll: return "poll";
    case MeshPattern::kJoin: return "join";
  }
  return "";
}

const char* to_string(MeshBy by) noexcept { return by == MeshBy::kWrite ? "write" : "message"; }

void add_mesh(CLI::App& app, MeshArguments& arguments, Exit& exit) {
  CLI::App& command = *app.add_subcommand("mesh", "messages or writes between the processes of a mesh");
  arguments.mesh.processes = 2;
  add_processes(command, arguments);
  add_traffic(command, arguments);
  command.add_option("--cpu", arguments.cpu, "run the first process on this cpu only; the others on those that follow")
      ->check(whole_number(0, 65535));
  command.add_flag("--json", arguments.json, "a JSON object on a line, instead of text");
  command.callback([&app, &arguments, &exit] {
    if (!arguments.hosts.empty()) arguments.mesh.processes = static_cast<unsigned>(arguments.hosts.size());
    const std::string wrong = check_mesh_arguments(arguments);
    exit = wrong.empty() ? run_mesh(arguments) : usage(app, wrong);
  });
}

std::string check_mesh_arguments(const MeshArguments& a) {
  const unsigned processes = a.mesh.processes;
  if (!a.hosts.empty() && (processes < 2 || processes > kPerfMostProcesses))
    return fmt::format("--hosts has {} processes, and a run takes 2 to {}", processes, kPerfMostProcesses);
  for (const std::string& entry : a.hosts)
    if (!port_of(entry)) return fmt::format("--hosts takes HOST:PORT,..., not {}", quoted_bytes(entry));
  if (a.id && *a.id >= processes) return fmt::format("--id {} is none of the {} processes", *a.id, processes);
  if (a.id && a.directory.empty() && a.hosts.empty())
    return "--id needs --directory or --hosts, by which the processes find each other";
  if (a.by() == MeshBy::kMessage && a.bytes > mesh::kMaxMessageBytes)
    return fmt::format("--size {} is no message: they have at most {} bytes", a.bytes, mesh::kMaxMessageBytes);
  constexpr std::uint64_t kMaxMemory = std::uint64_t{1} << 30;
  if (const std::uint64_t memory = 2 * processes * a.bytes; a.by() == MeshBy::kWrite && memory > kMaxMemory)
    return fmt::format("--processes {} with writes of {} bytes take {} bytes in each process, and {} are the most",
                       processes, a.bytes, memory, kMaxMemory);
  if (a.mesh.batch > a.mesh.operations)
    return fmt::format("--batch {} is more than --operations {}", a.mesh.batch, a.mesh.operations);
  if (const auto allowed = allowed_cpus(); a.cpu && std::ranges::find(allowed, *a.cpu) == allowed.end())
    return fmt::format("--cpu {} is none of the {} cpus that this process may use", *a.cpu, allowed.size());
  return {};
}

}  // namespace verbena::programs
