// The replaced systems' programs, in one file that goes by their names: by argv[0], or by the first argument.
#include "programs/compat.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace verbena::programs {
namespace {

struct Program {
  const char* name;
  Exit (*run)(int, char**);
};
constexpr std::array kPrograms{
    Program{"kv_server", run_kv_server},
    Program{"kv_client", run_kv_client},
    Program{"application", run_application},
    Program{"client", run_sweep_client},
};

const Program* program_called(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const auto* const found =
      std::ranges::find_if(kPrograms, [name](const Program& program) { return program.name == name; });
  return found != kPrograms.end() ? found : nullptr;
}

Exit run_no_program(int argc, char** argv) {
  complain("takes the program to be as its name or first argument: kv_server, kv_client, application or client, not {}",
           argc > 1 ? quoted_bytes(argv[1]) : "nothing");
  return Exit::kUsage;
}

int run_compat(int argc, char** argv) {
  if (argc > 0)
    if (const Program* const own = program_called(argv[0])) return run_program(own->name, own->run, argc, argv);
  if (argc > 1)
    if (const Program* const first = program_called(argv[1]))
      return run_program(first->name, first->run, argc - 1, argv + 1);
  return run_program("verbena-compat", run_no_program, argc, argv);
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) { return verbena::programs::run_compat(argc, argv); }
