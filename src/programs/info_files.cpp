#include "programs/info_files.hpp"

#include "base/files.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <system_error>
#include <tuple>

namespace verbena::programs {
namespace {

constexpr std::size_t kMostText = std::size_t{64} << 10;
constexpr std::size_t kMostLine = 160;
constexpr std::size_t kMostNames = 4096;
constexpr std::string_view kBlank = " \t\r\n";

bool is_printable(char c) noexcept { return c >= 0x20 && c <= 0x7e; }

}  // namespace

std::optional<std::string> SystemFiles::text(std::string_view path) const {
  const auto file = File::open(full(path).c_str(), File::How::kRead);
  if (!file || !file->facts().value_or(File::Facts{}).is_regular) return std::nullopt;
  std::string bytes(kMostText, '\0');
  const auto length = file->read(0, std::as_writable_bytes(std::span(bytes)));
  if (!length) return std::nullopt;
  bytes.resize(*length);
  return bytes;
}

std::string SystemFiles::line(std::string_view path) const {
  const auto all = text(path);
  return all ? printable(without_blanks(std::string_view(*all).substr(0, all->find('\n')))) : std::string();
}

std::optional<std::int64_t> SystemFiles::number(std::string_view path) const { return whole_number(line(path)); }

std::vector<std::string> SystemFiles::names(std::string_view path) const {
  const auto directory = Directory::open(full(path).c_str());
  if (!directory) return {};
  auto names = directory->names(kMostNames).value_or(std::vector<std::string>{});
  std::erase_if(names, [](const std::string& name) { return !std::ranges::all_of(name, is_printable); });
  // A shorter number is smaller; anything that is not a number comes last.
  std::ranges::sort(names, {}, [](const std::string& name) {
    const bool is_number = whole_number(name).has_value();
    return std::tuple(!is_number, is_number ? name.size() : 0, name);
  });
  return names;
}

bool SystemFiles::exists(std::string_view path) const {
  std::error_code ignored;
  return std::filesystem::exists(full(path), ignored);
}

bool SystemFiles::may_open(std::string_view path) const { return ::access(full(path).c_str(), R_OK | W_OK) == 0; }

std::optional<std::int64_t> whole_number(std::string_view text) noexcept {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> natural(std::optional<std::int64_t> number) noexcept {
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

std::string_view without_blanks(std::string_view text) noexcept {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t begin = text.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    words.push_back(text.substr(0, text.find_first_of(kBlank)));
    text.remove_prefix(words.back().size());
  }
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kMostLine));
  std::ranges::replace_if(out, [](char c) { return !is_printable(c); }, '?');
  return out;
}

}  // namespace verbena::programs
