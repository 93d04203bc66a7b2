#include "link/keys.hpp"

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/mac.hpp"
#include "base/random.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>

namespace verbena::link {

namespace {

constexpr const char* kCall = "key_file";
constexpr std::string_view kBlanks = " \t\r";
constexpr const char* kExpected = "write NAME SECRET, the secret as 32 hexadecimal digits or more, or as base64";

bool is_between(char c, char first, char last) noexcept { return c >= first && c <= last; }

/// Value of a hexadecimal digit; -1 if it is none.
int hex_digit(char c) noexcept {
  if (is_between(c, '0', '9')) return c - '0';
  if (is_between(c, 'a', 'f')) return c - 'a' + 10;
  return is_between(c, 'A', 'F') ? c - 'A' + 10 : -1;
}

/// Value of a base64 digit; -1 if it is none.
int base64_digit(char c) noexcept {
  if (is_between(c, 'A', 'Z')) return c - 'A';
  if (is_between(c, 'a', 'z')) return c - 'a' + 26;
  if (is_between(c, '0', '9')) return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

/// A secret while it is read; the destructor wipes it.
struct Decoded {
  std::array<std::byte, kMaxSecretBytes> bytes{};
  std::size_t size = 0;
  Decoded() = default;
  Decoded(const Decoded&) = delete;
  Decoded& operator=(const Decoded&) = delete;
  ~Decoded() { wipe(bytes); }
};

/// Decodes digits of `bits` bits each, the highest first. False: an invalid digit, too many, or leftover bits that are
/// not 0.
template <class Digit>
bool decode_digits(std::string_view text, unsigned bits, Decoded& out, const Digit& digit) noexcept {
  unsigned held = 0, held_bits = 0;
  for (const char c : text) {
    const int value = digit(c);
    if (value < 0) return false;
    held = (held << bits) | static_cast<unsigned>(value);
    held_bits += bits;
    if (held_bits < 8) continue;
    if (out.size == out.bytes.size()) return false;
    held_bits -= 8;
    out.bytes[out.size++] = static_cast<std::byte>(held >> held_bits);
    held &= (1U << held_bits) - 1;
  }
  return held == 0 && held_bits < bits;
}

/// An even number of hexadecimal digits counts as hexadecimal, even if it would be valid base64.
bool decode_secret(std::string_view text, Decoded& out) noexcept {
  const bool is_hex = text.size() % 2 == 0 && std::ranges::all_of(text, [](char c) { return hex_digit(c) >= 0; });
  if (is_hex) return decode_digits(text, 4, out, hex_digit);
  const std::string_view digits = text.substr(0, std::min(text.find('='), text.size()));
  const std::string_view padding = text.substr(digits.size());
  const bool is_padded = padding.empty() || (text.size() % 4 == 0 && (padding == "=" || padding == "=="));
  return is_padded && decode_digits(digits, 6, out, base64_digit);
}

/// Takes the first word off `line`, with the blanks after it.
std::string_view take_word(std::string_view& line) noexcept {
  const std::string_view word = line.substr(0, std::min(line.find_first_of(kBlanks), line.size()));
  line.remove_prefix(word.size());
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  return word;
}

template <class... Args>
std::unexpected<Error> wrong_line(const std::string& path, std::size_t number, fmt::format_string<Args...> format,
                                  Args&&... args) noexcept {
  char what[160];
  const auto end = fmt::format_to_n(what, sizeof what, format, std::forward<Args>(args)...);
  return fail(Status::kBadArgument, kCall, 0, "key_file {:.60}, line {}: {}: {}", path, number,
              std::string_view(what, std::min(end.size, sizeof what)), kExpected);
}

/// Refuses a file that is not fit for secrets: not a regular file, or other users may read or change it.
Result<void> check_file(const File::Facts& facts, const std::string& path) noexcept {
  if (!facts.is_regular)
    return fail(Status::kBadArgument, kCall, 0, "key_file {:.100} is no regular file: give one that has keys", path);
  if ((facts.mode & 077U) != 0)
    return fail(Status::kPermission, kCall, 0, "key_file {:.100} has mode {:04o}, and others may use it: chmod 600 it",
                path, facts.mode);
  if (facts.owner != 0 && facts.owner != ::geteuid())
    return fail(Status::kPermission, kCall, 0,
                "key_file {:.100} belongs to user {}, who may change it: chown it to user {}, or to root", path,
                facts.owner, ::geteuid());
  if (facts.bytes > kMaxKeyFileBytes)
    return fail(Status::kTooLong, kCall, 0, "key_file {:.100} has {} bytes, and the limit is {}: is it the right file?",
                path, facts.bytes, kMaxKeyFileBytes);
  return {};
}

/// The bytes of a file; the destructor wipes them.
struct Text {
  std::vector<char> bytes;
  Text() : bytes(kMaxKeyFileBytes + 1) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { wipe(std::as_writable_bytes(std::span(bytes))); }
};

}  // namespace

bool is_key_name(std::string_view name) noexcept {
  const auto fits = [](char c) {
    return is_between(c, 'a', 'z') || is_between(c, 'A', 'Z') || is_between(c, '0', '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kMaxKeyNameBytes && std::ranges::all_of(name, fits);
}

Key::Key(std::string_view name, std::span<const std::byte> secret)
    : name_(name), secret_bytes_(std::min(secret.size(), kMaxSecretBytes)) {
  std::ranges::copy(secret.first(secret_bytes_), secret_.begin());
}

Key::~Key() { wipe(secret_); }

Result<std::shared_ptr<const Keys>> Keys::load(const std::string& path) {
  VERBENA_TRY(check_mac());
  const auto file = File::open(path.c_str(), File::How::kRead);
  if (!file) {
    const Status status = file.error().status();
    return fail(status, kCall, file.error().system_errno(), "key_file {:.100} cannot be opened: {}", path,
                status == Status::kNotFound     ? "there is no such file"
                : status == Status::kPermission ? "this user may not read it"
                                                : file.error().text());
  }
  VERBENA_ASSIGN(const File::Facts facts, file->facts());
  VERBENA_TRY(check_file(facts, path));
  Text text;
  VERBENA_ASSIGN(const std::size_t size, file->read(0, std::as_writable_bytes(std::span(text.bytes))));
  if (size == text.bytes.size())
    return fail(Status::kTooLong, kCall, 0, "key_file {:.100} grows while it is read: replace it by rename", path);
  return parse({text.bytes.data(), size}, path);
}

Result<std::shared_ptr<const Keys>> Keys::parse(std::string_view text, const std::string& path) {
  const std::shared_ptr<Keys> keys(new Keys(path));
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    VERBENA_TRY(keys->add(line.substr(0, std::min(line.find('#'), line.size())), number));
  }
  if (!keys->keys_.empty()) return keys;
  return fail(Status::kBadArgument, kCall, 0, "key_file {:.60} has no key: {}", path, kExpected);
}

/// Errors show no word of the line, not even the name, because a secret may be in its place.
Result<void> Keys::add(std::string_view line, std::size_t number) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  if (line.empty()) return {};
  const std::string_view name = take_word(line);
  if (!is_key_name(name))
    return wrong_line(path_, number, "a name has 1 to {} letters, digits, '.', '_' or '-'", kMaxKeyNameBytes);
  const std::string_view secret = take_word(line);
  if (secret.empty()) return wrong_line(path_, number, "there is one word, and not two");
  if (!line.empty()) return wrong_line(path_, number, "there are more than two words");
  Decoded decoded;
  if (!decode_secret(secret, decoded) || decoded.size < kMinSecretBytes)
    return wrong_line(path_, number, "the secret is not {} to {} bytes in hexadecimal or base64", kMinSecretBytes,
                      kMaxSecretBytes);
  if (find(name) != nullptr) return wrong_line(path_, number, "a key of that name is there already");
  if (keys_.size() == kMostKeys) return wrong_line(path_, number, "a file has {} keys at most", kMostKeys);
  keys_.push_back(std::make_shared<Key>(name, std::span(decoded.bytes).first(decoded.size)));
  return {};
}

std::shared_ptr<const Key> Keys::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find_if(keys_, [&](const auto& key) { return key->name() == name; });
  return found != keys_.end() ? *found : nullptr;
}

Result<std::shared_ptr<const Key>> Keys::choose(const std::string& name) const {
  if (name.empty()) return keys_.front();
  if (auto key = find(name)) return key;
  return fail(Status::kNotFound, kCall, 0, "key_file {:.100} has no key with the key_name {:.32}: give one that it has",
              path_, is_key_name(name) ? name : "given");
}

}  // namespace verbena::link
