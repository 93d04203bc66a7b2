// Commands for the shell, and JSON through Python: what a user's own tools make of the programs' output.
#pragma once

#include "scratch.hpp"

#include <fmt/core.h>

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace verbena::test {

/// Exit code and stdout of a shell command.
struct ShellRan {
  int exit = -1;
  std::string out;
};
[[nodiscard]] inline ShellRan run(const std::string& command) {
  ShellRan ran;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ran;
  char part[4096];
  for (std::size_t got; (got = std::fread(part, 1, sizeof part, pipe)) != 0;) ran.out.append(part, got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.exit = WEXITSTATUS(status);
  return ran;
}

[[nodiscard]] inline bool have_python() {
  static const bool have = run("python3 -c 'import json' 2>&1").exit == 0;
  return have;
}

/// What Python prints of an expression over `data`, which `load` makes of `file`; its complaint when that fails.
[[nodiscard]] inline std::string from_python(const std::string& text, const std::string& load,
                                             const std::string& expression) {
  const Scratch scratch;
  scratch.write("data", text);
  const ShellRan ran = run(fmt::format("python3 -c 'import csv, json; file = open(\"{}\"); data = {}; print({})' 2>&1",
                                       (scratch.path() / "data").string(), load, expression));
  return ran.out.substr(0, ran.out.find_last_not_of('\n') + 1);
}

/// Over the parsed JSON.
[[nodiscard]] inline std::string from_json(const std::string& json, const std::string& expression) {
  return from_python(json, "json.load(file)", expression);
}
/// Over a list of what is on each line.
[[nodiscard]] inline std::string from_json_lines(const std::string& json, const std::string& expression) {
  return from_python(json, "[json.loads(line) for line in file]", expression);
}
/// Over a list of a mapping for each line below the head.
[[nodiscard]] inline std::string from_csv(const std::string& text, const std::string& expression) {
  return from_python(text, "list(csv.DictReader(file, strict=True))", expression);
}

}  // namespace verbena::test
