// Keys and values of the store on the command line and in files.
#pragma once

#include "base/fd.hpp"

#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Reads `fd` to its end into `out`, whose memory is reused. Errors: kTooLong (more than `most` bytes). `name` is for
/// the message. \thread owner of `out`
[[nodiscard]] Result<void> read_all(int fd, std::string_view name, std::size_t most, std::vector<std::byte>& out);

/// Reads up to out.size() bytes of `fd`; fewer only at its end.
[[nodiscard]] Result<std::size_t> read_up_to(int fd, std::string_view name, std::span<std::byte> out);

/// Writes everything to `fd`.
[[nodiscard]] Result<void> write_all(int fd, std::string_view name, std::span<const std::byte> bytes);

/// Errors: kBadArgument if `path` must not be replaced or removed: a device, a directory, a symbolic link.
[[nodiscard]] Result<void> check_replaceable(const std::filesystem::path& path);
/// Replaces a regular file by `text` atomically, or creates it: a reader sees the whole text or none of it. Errors:
/// those of check_replaceable.
[[nodiscard]] Result<void> replace_file(const std::filesystem::path& path, std::string_view text);

enum class Follow { kNo, kYes };
/// Opens a file for reading; with Follow::kNo refuses a symbolic link as the last component.
[[nodiscard]] Result<Fd> open_file(const std::filesystem::path& path, Follow follow);

/// "127.0.0.1:7470", "[::1]:7470".
[[nodiscard]] std::string endpoint(std::string_view address, std::uint16_t port);

/// A get whose buffer grows as needed; kBufferTooSmall only if the value outgrew it again and again. `value` keeps its
/// memory from call to call, and is afterwards at least outcome.length long.
[[nodiscard]] kv::Outcome get_whole(kv::Client& client, std::string_view key, std::vector<std::byte>& value);

/// Reads a regular file of up to `most` bytes; follows a symbolic link.
[[nodiscard]] Result<void> read_file(const std::filesystem::path& path, std::size_t most, std::vector<std::byte>& out);

}  // namespace verbena::programs
