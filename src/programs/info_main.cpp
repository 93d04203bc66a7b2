// verbena-info: what this host has for programs of ours, what is wrong with it, and what mends that.
#include "programs/exit_code.hpp"
#include "programs/info.hpp"

#include <fmt/format.h>
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

Exit run(int argc, char** argv) {
  CLI::App app(
      "What this host has for programs of Verbena, what stands in their way, and the command that mends it.\n"
      "Changes nothing. Exit codes: 0 done, whatever was found; 2 usage; 3 the output cannot be written.\n",
      "verbena-info");
  bool json = false;
  app.set_version_flag("--version", "verbena-info " VERBENA_VERSION);
  app.add_flag("--json", json, "one JSON object instead of text");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success) == 0 ? Exit::kDone : Exit::kError;  // --help and --version.
  } catch (const CLI::ParseError& error) {
    say("", error.what());
    return Exit::kUsage;
  }
  const HostFacts facts = read_host(SystemFiles());
  const std::vector<Finding> findings = find_problems(facts);
  const std::string text = json ? info_json(facts, findings) : info_text(facts, findings);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? Exit::kDone : Exit::kError;
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
