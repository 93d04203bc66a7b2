#include "programs/client_defaults.hpp"

#include "programs/options.hpp"
#include "programs/shell_words.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace verbena::programs {
namespace {

struct Variable {
  const char* name;
  const char* option;
};
constexpr std::array kVariables{Variable{"VERBENA_KV_ADDRESS", "address"}, Variable{"VERBENA_KV_PORT", "port"},
                                Variable{"VERBENA_KV_DEVICE", "device"}, Variable{"VERBENA_KV_KEY_FILE", "key-file"}};

/// CLI11 puts descriptions into this column.
constexpr int kHelpColumn = 30;
std::string help_row(const char* name, std::string_view what) {
  return fmt::format("  {:<{}}{}\n", name, kHelpColumn - 2, what);
}

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

/// `where` says whence the value comes.
void set_default(CLI::App& command, const std::string& name, const std::string& value, const std::string& where) {
  CLI::Option& option = *command.get_option("--" + name);
  try {
    option.run_callback_for_default()->default_val(value);
  } catch (const CLI::ConversionError&) {
    const bool is_flag = option.get_items_expected_max() == 0;
    throw CLI::ValidationError(where + ' ' + wrong_value(is_flag ? "true or false" : option.get_type_name(), value));
  } catch (const CLI::ParseError& wrong) {
    const std::string text = wrong.what();
    const std::string named = option.get_name() + ": ";
    throw CLI::ValidationError(where + ' ' + (text.starts_with(named) ? text.substr(named.size()) : text));
  }
  // A default does not count as given, which --key-name looks for.
  if (name == "key-file") command.get_option("--key-name")->remove_needs(&option);
}

void take_file(CLI::App& command, std::span<const std::string> names, const std::string& path, bool must_be_there) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found && !must_be_there) return;
  std::ifstream input(path);
  if (kind == std::filesystem::file_type::directory) throw CLI::FileError(path + ": this is a directory");
  if (!input) throw CLI::FileError(fmt::format("{}: cannot read it: {}", path, std::generic_category().message(errno)));
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(input)) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of sections, in which the next items are.
    const std::string where = fmt::format("{}: {}", path, escaped(item.name));
    if (!item.parents.empty()) throw CLI::ConfigError(where + " is in a section, and the file has none");
    if (std::ranges::find(names, item.name) == names.end()) {
      const std::string* const meant = nearest_name(item.name, names);
      throw CLI::ConfigError(fmt::format("{} is no option of all clients{}", where,
                                         meant == nullptr ? "" : fmt::format("; did you mean {}?", *meant)));
    }
    if (item.inputs.size() != 1) throw CLI::ConfigError(where + " takes one value");
    set_default(command, item.name, item.inputs.front(), where);
  }
}

}  // namespace

std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    if (option->get_configurable() && !option->get_lnames().empty()) names.push_back(option->get_lnames().front());
  return names;
}

std::string client_defaults_help() {
  std::string text = "Environment:\n";
  for (const Variable& variable : kVariables)
    text += help_row(variable.name, fmt::format("what clients take where --{} is missing", variable.option));
  text += help_row("VERBENA_KV_CONFIG", "file of defaults in place of the one below (empty: none)");
  text += help_row("VERBENA_KV_HISTORY",
                   "where the shell keeps its lines (default: ~/.verbena_kv_history; empty: nowhere)");
  text += "\nFiles:\n";
  text += help_row("~/.config/verbena/kv.toml",
                   "defaults of the options that all clients have, such as \"port = 7471\", one a line");
  return text;
}

void take_client_defaults(CLI::App& command, std::span<const std::string> names) {
  if (const char* const named = std::getenv("VERBENA_KV_CONFIG"); named != nullptr) {
    if (*named != '\0') take_file(command, names, named, true);
  } else {
    std::string directory = value_of("XDG_CONFIG_HOME");
    if (const std::string home = value_of("HOME"); directory.empty() && !home.empty()) directory = home + "/.config";
    if (!directory.empty()) take_file(command, names, directory + "/verbena/kv.toml", false);
  }
  for (const Variable& variable : kVariables)
    if (const std::string value = value_of(variable.name); !value.empty())
      set_default(command, variable.option, value, variable.name);
}

}  // namespace verbena::programs
