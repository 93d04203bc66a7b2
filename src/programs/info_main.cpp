// verbena-info: what this host offers to programs of Verbena, what is wrong with it, and how to fix that.
#include "programs/exit_code.hpp"
#include "programs/info.hpp"
#include "programs/info_plan.hpp"
#include "programs/options.hpp"

#include <verbena/version.h>

#include <CLI/CLI.hpp>

#include <csignal>

namespace verbena::programs {
namespace {

Exit print_plan(const kv::ServerOptions& options, bool json) {
  const auto plan = plan_server(options);
  if (plan) return write_out(json ? plan_json(*plan) : plan_text(*plan));
  complain("no plan: {}; see verbena-info --help", printable(by_option(plan.error().text())));
  return plan.error().status() == Status::kBadArgument ? Exit::kUsage : Exit::kError;
}

Exit print_host(bool json) {
  const HostFacts facts = read_host(SystemFiles());
  const std::vector<Finding> findings = find_problems(facts);
  return write_out(json ? info_json(facts, findings) : info_text(facts, findings));
}

Exit run_info_program(int argc, char** argv) {
  CLI::App app(
      "What this host has for programs of Verbena, what stands in their way, and the command that mends it.\n"
      "With --plan: what a `verbena-kv serve` of the same options would allocate, and where its workers would be.\n"
      "Changes nothing. Exit codes: 0 done, whatever was found; 2 usage; 3 the output cannot be written, or the NIC "
      "that "
      "is named for a plan cannot be opened.\n",
      "verbena-info");
  bool json = false, plan = false;
  kv::ServerOptions server;
  app.set_version_flag("--version", "verbena-info " VERBENA_VERSION);
  app.add_flag("--json", json, "one JSON object instead of text");
  CLI::Option* const planning = app.add_flag("--plan", plan, "plan a server, and print its placement and pools");
  CLI::App& serving = *app.add_option_group("Options of the planned server");
  add_transport_options(serving, server.transport);
  add_address(serving, server.address, "address or name to listen on (default: the NIC's own)");
  add_serve_options(serving, server);
  add_allowed_uids(serving, server.allowed_uids, "a user besides this one who may connect, by number");
  for (CLI::Option* option : serving.get_options()) option->needs(planning);
  Exit exit = Exit::kDone;
  app.callback([&] { exit = plan ? print_plan(server, json) : print_host(json); });
  return run_parsed(app, argc, argv, exit);
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  // With a small RLIMIT_FSIZE the soft NIC's memfds would kill this program, which has to report exactly that.
  std::signal(SIGXFSZ, SIG_IGN);
  return verbena::programs::run_program("verbena-info", verbena::programs::run_info_program, argc, argv);
}
