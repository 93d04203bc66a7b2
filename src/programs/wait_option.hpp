// --wait: the wait policy on a command line.
#pragma once

#include <verbena/wait_policy.hpp>

#include <CLI/CLI.hpp>

#include <string>

namespace verbena::programs {

/// Adds --wait; `whose` says who waits so. `wait` outlives the parsing, and its value before is the default.
void add_wait_option(CLI::App& command, WaitPolicy& wait, const std::string& whose);

}  // namespace verbena::programs
