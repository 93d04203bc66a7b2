// Helpers that several subcommands share: keys and values of the store as the command line and files have them.
#pragma once

#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

[[nodiscard]] inline kv::Key as_key(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

/// "127.0.0.1:7470", "[::1]:7470".
[[nodiscard]] std::string endpoint(std::string_view address, std::uint16_t port);

/// A get whose buffer grows to what is needed; kBufferTooSmall only when the value outgrew it again and again.
/// `value` keeps its memory from call to call, and is at least outcome.length long afterwards.
[[nodiscard]] kv::Outcome get_whole(kv::Client& client, std::string_view key, std::vector<std::byte>& value);

/// Reads a regular file, up to `most` bytes. A symbolic link is followed.
[[nodiscard]] Result<void> read_file(const std::filesystem::path& path, std::size_t most, std::vector<std::byte>& out);

}  // namespace verbena::programs
