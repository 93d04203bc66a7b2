// Runs one operation again and again, both of its sides in one thread, so that what each side costs is the same in
// every run: for budgets.py, under callgrind, or with `lines` by itself. usage: budget OPERATION instructions|lines
// COUNT | budget list | budget clock
#include "operations.hpp"

#include <verbena/deadline.hpp>

#include <charconv>
#include <string_view>
#include <vector>

namespace verbena::budget {

namespace {

[[nodiscard]] std::vector<Operation> all_operations() {
  std::vector<Operation> all;
  for (const auto some : {one_sided_operations(), message_operations(), store_operations()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

int usage() {
  std::fprintf(stderr, "usage: budget OPERATION instructions|lines COUNT | budget list | budget clock\n");
  return 2;
}

int list() {
  for (const Operation& operation : all_operations()) std::printf("%s\n", operation.name);
  return EXIT_SUCCESS;
}

int run(std::string_view name, std::string_view what, std::string_view count) {
  std::uint64_t operations = 0;
  if (std::from_chars(count.begin(), count.end(), operations).ptr != count.end() || operations == 0) return usage();
  if (what != "instructions" && what != "lines") return usage();
  const bool is_lines = what == "lines";
  if (is_lines && !lines::is_available()) return 77;
  for (const Operation& operation : all_operations()) {
    if (operation.name != name) continue;
    Meter meter(is_lines ? Meter::Counts::kLines : Meter::Counts::kInstructions, operations);
    if (operation.run(meter)) return EXIT_SUCCESS;
    std::fprintf(stderr, "budget: %s failed\n", operation.name);
    return EXIT_FAILURE;
  }
  return usage();
}

}  // namespace

}  // namespace verbena::budget

int main(int argc, char** argv) {
  using namespace verbena;
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  int code = 2;
  if (words.size() == 1 && words[0] == "list") {
    code = budget::list();
  } else if (words.size() == 1 && words[0] == "clock") {
    code = (std::printf("%s\n", clock_description()), EXIT_SUCCESS);
  } else if (words.size() == 3) {
    code = budget::run(words[0], words[1], words[2]);
  } else {
    code = budget::usage();
  }
  std::fflush(nullptr);
  // Without goodbyes: no thread is left that would drive the servers. The kernel frees what both sides had.
  std::_Exit(code);
}
