// verbena-info: what this host has for programs of ours, what is wrong with it, and what mends that.
#include "programs/exit_code.hpp"
#include "programs/info.hpp"
#include "programs/info_plan.hpp"
#include "programs/option_words.hpp"
#include "programs/serve_options.hpp"
#include "programs/transport_options.hpp"

#include <fmt/core.h>
#include <verbena/version.h>

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

namespace verbena::programs {
namespace {

void say(const char* what, std::string_view text) {
  fmt::print(stderr, "verbena-info: {}{}; see verbena-info --help\n", what, printable(text));
}

Exit write(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? Exit::kDone : Exit::kError;
}

Exit print_plan(const kv::ServerOptions& options, bool json) {
  const auto plan = plan_server(options);
  if (plan) return write(json ? plan_json(*plan) : plan_text(*plan));
  say("no plan: ", by_option(plan.error().text()));
  return plan.error().status() == Status::kBadArgument ? Exit::kUsage : Exit::kError;
}

Exit run(int argc, char** argv) {
  CLI::App app(
      "What this host has for programs of Verbena, what stands in their way, and the command that mends it.\n"
      "With --plan: what a `verbena-kv serve` of the same options would allocate, and where its workers would be.\n"
      "Changes nothing. Exit codes: 0 done, whatever was found; 2 usage; 3 the output cannot be written, or the NIC "
      "that "
      "is named for a plan cannot be opened.\n",
      "verbena-info");
  bool json = false, plan = false;
  kv::ServerOptions server;
  ServeUnits units;
  app.set_version_flag("--version", "verbena-info " VERBENA_VERSION);
  app.add_flag("--json", json, "one JSON object instead of text");
  app.add_flag("--plan", plan, "plan a server, and print its placement and pools");
  CLI::App& serving = *app.add_option_group("Of the planned server");
  add_transport_options(serving, server.transport);
  serving.add_option("-a,--address", server.address, "address or name to listen on (default: the NIC's own)");
  add_serve_options(serving, server, units);
  add_allowed_uids(serving, server.allowed_uids, "a user besides this one who may connect, by number");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success) == 0 ? Exit::kDone : Exit::kError;  // --help and --version.
  } catch (const CLI::ParseError& error) {
    say("", error.what());
    return Exit::kUsage;
  }
  if (plan) {
    settle(units, server);
    return print_plan(server, json);
  }
  if (serving.count_all() != 0) {
    say("", "options of a server say nothing without --plan");
    return Exit::kUsage;
  }
  const HostFacts facts = read_host(SystemFiles());
  const std::vector<Finding> findings = find_problems(facts);
  const std::string text = json ? info_json(facts, findings) : info_text(facts, findings);
  return write(text);
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  // Under a small RLIMIT_FSIZE the soft NIC's memfds would end this program, which is to report just that.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return static_cast<int>(verbena::programs::run(argc, argv));
  } catch (const std::exception& error) {
    verbena::programs::say("out of resources: ", error.what());
    return static_cast<int>(verbena::programs::Exit::kError);
  }
}
