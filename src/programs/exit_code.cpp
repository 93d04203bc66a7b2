#include "programs/exit_code.hpp"

#include "base/failure.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "programs/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <system_error>

namespace verbena::programs {
namespace {
const char* program = "verbena-kv";

struct Name {
  std::string_view field, option;
  std::uint64_t unit = 1;  ///< Bytes per unit of the option.
};
/// Names that are not English words, except `depth`, which always means the option.
constexpr std::array kNames{
    Name{"allowed_uids", "--allow-uid"},
    Name{"connect_timeout", "--timeout-ms"},
    Name{"depth", "--depth"},
    Name{"evict (a policy)", "--evict"},
    Name{"gid_index", "--gid-index"},
    Name{"grace (ms)", "--grace-ms"},
    Name{"grants", "--allow"},
    Name{"key_file", "--key-file"},
    Name{"key_name", "--key-name"},
    Name{"known_locations", "--known-locations"},
    Name{"lease_bytes", "--lease-kib", kKibi},
    Name{"max_cells", "--max-cells"},
    Name{"max_clients", "--max-clients"},
    Name{"max_clients_per_user", "--max-clients-per-user"},
    Name{"max_items", "--max-items"},
    Name{"max_memory_bytes", "--quota"},
    Name{"max_value_bytes", "--max-value-mib", kMebi},
    Name{"memory_bytes", "--memory"},
    Name{"read_only", "--read-only"},
    Name{"require_hugepages", "--require-hugepages"},
    Name{"wait (a policy)", "--wait"},
    Name{"window_bytes", "--window"},
};

[[nodiscard]] bool is_part(char c) noexcept { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The name that begins at `at`, as a whole word; null if none does.
[[nodiscard]] const Name* name_at(std::string_view text, std::size_t at) noexcept {
  if (at != 0 && (is_part(text[at - 1]) || text[at - 1] == '-')) return nullptr;
  const auto* const found = std::ranges::find_if(kNames, [&](const Name& name) {
    const std::size_t end = at + name.field.size();
    return text.substr(at).starts_with(name.field) && (end == text.size() || !is_part(text[end]));
  });
  return found != kNames.end() ? found : nullptr;
}

/// If `text` begins with " is BYTES", appends that value in the option's unit and in bytes. Returns the length of that
/// part.
std::size_t put_value(std::string& out, std::string_view text, std::uint64_t unit) {
  constexpr std::string_view kIs = " is ";
  std::uint64_t bytes = 0;
  if (!text.starts_with(kIs)) return 0;
  const auto [end, error] = std::from_chars(text.data() + kIs.size(), text.data() + text.size(), bytes);
  if (error != std::errc()) return 0;
  out += fmt::format(" is {} ({} bytes)", bytes / unit, bytes);
  return static_cast<std::size_t>(end - text.data());
}

/// Opens closed standard descriptors. Otherwise the next opened file would get such a number, and printed values would
/// go into memory of the library. Using them remains an error: each is opened for the other direction.
void keep_standard_descriptors() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    // open returns the lowest free number, which is this one.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) ::_exit(static_cast<int>(Exit::kError));
  }
}

}  // namespace

int run_program(const char* name, Exit (*run)(int, char**), int argc, char** argv) {
  program = name;
  keep_standard_descriptors();
  // A reader that goes away then causes an error of write(2), which is reported.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return static_cast<int>(run(argc, argv));
  } catch (const std::bad_alloc& error) {
    return static_cast<int>(error_exit("out of memory: {}; free memory, or ask for less", error.what()));
  } catch (const std::system_error& error) {
    // A thread that the system refuses is the usual one.
    return static_cast<int>(error_exit("out of resources: {}; free some, or raise the limits", error.what()));
  } catch (const std::exception& error) {
    return static_cast<int>(error_exit("internal error: {}; this is a fault of the program, report it", error.what()));
  }
}

Exit write_out(std::string_view text) {
  const auto written = write_all(STDOUT_FILENO, "standard output", bytes_of_text(text));
  return written ? Exit::kDone : error_exit("{}", written.error().text());
}

Exit exit_of(Status status) noexcept {
  switch (status) {
    case Status::kOk: return Exit::kDone;
    case Status::kNotFound:
    case Status::kVersionMismatch: return Exit::kNo;
    default: return Exit::kError;
  }
}

void complain_text(std::string_view text) {
  std::string line = fmt::format("{}: {}", program, text);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(line.begin(), line.end(), is_control, '?');
  line.push_back('\n');
  // One call, so that lines of several processes on one terminal do not mix.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string explain(const kv::Outcome& outcome, const Error& broken) {
  if (damage_of(outcome.status) >= Damage::kConnection && broken.status() != Status::kOk) {
    return fmt::format("{}: {}", to_string(broken.status()), broken.text());
  }
  switch (outcome.status) {
    case Status::kNotFound: return "not found: the store has no such key";
    case Status::kVersionMismatch:
      return fmt::format("version mismatch: the current version is {}; get it, then try again with that",
                         outcome.version);
    case Status::kBadKey: return fmt::format("bad key: a key has 1 to {} bytes; choose another", kv::kMaxKeyBytes);
    case Status::kTooLong: return "too long: the value exceeds the server's limit; raise it with serve --max-value-mib";
    case Status::kStoreFull:
      // Whoever may see statistics is told what fills it.
      return last_failure().status() == Status::kStoreFull
                 ? fmt::format("store full: {}", by_option(last_failure().text()))
                 : "store full: no memory is free for this value: verbena-kv stats tells what fills it; delete "
                   "something, or give the server more with serve -m";
    case Status::kIndexFull:
      return "index full: the store holds as many keys as it may; delete some, or raise it with serve --max-items";
    case Status::kWrongKind:
      return "wrong kind: the key is a cell's, which incr and cell are for, and this is for values, or the other way "
             "round";
    case Status::kDenied:
    case Status::kOverQuota: return fmt::format("{}: {}", to_string(outcome.status), by_option(last_failure().text()));
    case Status::kTimedOut:
      return "timed out: the server did not answer in time; see that it runs, or raise --timeout-ms";
    case Status::kAgain:
      return "try again: the server has too much in flight; lower --depth, or raise it at the server";
    case Status::kPeerLost: return "peer lost: the server is gone; start it again with verbena-kv serve";
    case Status::kClosed: return "closed: the server stopped; start it again with verbena-kv serve";
    default: return fmt::format("{}: the operation failed; see the server's own messages", to_string(outcome.status));
  }
}

std::string by_option(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (const Name* const name = name_at(text, at)) {
      out += name->option;
      at += name->field.size();
      if (name->unit != 1) at += put_value(out, text.substr(at), name->unit);
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string quoted_bytes(std::string_view bytes) {
  constexpr std::size_t kMost = 64;
  std::string out = "\"";
  for (const char c : bytes.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  out += bytes.size() > kMost ? "\"..." : "\"";
  return out;
}

}  // namespace verbena::programs
