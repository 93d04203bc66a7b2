// Keys that both ends of a connection know beforehand, and the files that contain them.
#pragma once

#include <verbena/error.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::link {

inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 64;  ///< A block of SHA-256: HMAC would hash a longer one.
inline constexpr std::size_t kMaxKeyNameBytes = 32;
inline constexpr std::size_t kMostKeys = 1024;
inline constexpr std::size_t kMaxKeyFileBytes = std::size_t{256} * 1024;

/// Letters, digits, '.', '_' and '-', 1 to kMaxKeyNameBytes of them. \thread any  \alloc none
[[nodiscard]] bool is_key_name(std::string_view name) noexcept;

/// A name, which everybody may know, and a secret. Immovable, so that the secret is in one place, where the destructor
/// wipes it.
class Key {
 public:
  /// At most kMaxSecretBytes of `secret`.
  Key(std::string_view name, std::span<const std::byte> secret);
  ~Key();
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::span<const std::byte> secret() const noexcept { return {secret_.data(), secret_bytes_}; }

 private:
  const std::string name_;
  std::array<std::byte, kMaxSecretBytes> secret_{};
  std::size_t secret_bytes_ = 0;
};

/// The keys of a file, one a line: `NAME SECRET`, the secret in hexadecimal or base64, and `#` begins a comment.
/// Immutable. \thread any
class Keys {
 public:
  /// Errors: kUnsupported (this build has no keys), kNotFound (no such file), kPermission (this process may not read
  /// it, or others may), kTooLong, kBadArgument (not a regular file, or a bad line: the text has its number and the
  /// expected form, but never the secret).
  [[nodiscard]] static Result<std::shared_ptr<const Keys>> load(const std::string& path);
  /// Reads keys from a file's text; `path` is for errors.
  [[nodiscard]] static Result<std::shared_ptr<const Keys>> parse(std::string_view text, const std::string& path);

  [[nodiscard]] std::size_t count() const noexcept { return keys_.size(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Null if there is none.
  [[nodiscard]] std::shared_ptr<const Key> find(std::string_view name) const noexcept;
  /// The key for a client to prove: the one of that name, or the first one if `name` is empty. Errors: kNotFound.
  [[nodiscard]] Result<std::shared_ptr<const Key>> choose(const std::string& name) const;

 private:
  explicit Keys(const std::string& path) : path_(path) {}
  [[nodiscard]] Result<void> add(std::string_view line, std::size_t number);

  const std::string path_;
  std::vector<std::shared_ptr<const Key>> keys_;
};

}  // namespace verbena::link
