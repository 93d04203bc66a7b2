// The Linux calls that the soft NIC uses: descriptors, sealed memfds, mappings, membarrier, sockets with fds.
#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"
#include "host/lazy_memory.hpp"

#include <verbena/deadline.hpp>

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#if defined(__SANITIZE_THREAD__)
#define VERBENA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VERBENA_TSAN 1
#endif
#endif

namespace verbena::nic::soft {

/// Ends a mapping.
struct Unmapper {
  std::size_t size = 0;
  bool is_owned = true;
  void operator()(std::byte* data) const noexcept;
};

/// Move-only owner of a shared mapping. In TSan builds a mapping of memory that this process also owns shares the
/// owner's addresses, because TSan cannot see a race through two mappings of one page; its destructor then does not
/// unmap.
class Mapping {
 public:
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return data_.get_deleter().size; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  enum class Mode : std::uint8_t { kRead, kReadWrite };
  /// Maps all of a memfd from a peer. kProtocol unless it is a memfd of `size` bytes, sealed against shrinking and
  /// further seals, so that the peer can neither take pages away nor unseal it.
  [[nodiscard]] static Result<Mapping> of_peer(int fd, std::size_t size, Mode mode);
  /// Makes a sealed memfd of `size` bytes and maps it read-write here; others can map it only as `others` says.
  struct Owned;
  [[nodiscard]] static Result<Owned> create(const char* name, std::size_t size, Mode others);

 private:
  std::unique_ptr<std::byte, Unmapper> data_;
};
struct Mapping::Owned {
  Fd fd;
  Mapping mapping;
};

/// Whether a seal keeps the pages of a peer's memfd that are there.
[[nodiscard]] bool is_kept(int fd) noexcept;
/// Whether every page of a peer's memfd of `size` bytes is there, so that touching them makes none at this process's
/// expense; with `for_good` also whether a seal keeps them there. What a peer says of its memory proves neither. Takes
/// some 15 ms for each GiB of small pages that are there.
[[nodiscard]] bool is_whole(int fd, std::size_t size, bool for_good) noexcept;
/// Whether the memfd is of huge pages.
[[nodiscard]] bool is_huge(int fd) noexcept;
/// Whether this process runs as the user 0 whom every process of the host takes for that.
[[nodiscard]] bool is_root_of_host() noexcept;

using host::LazyMemory;

/// Lays out arrays one after another in one piece of memory, each from a new cache line on.
class Places {
 public:
  /// Adds an array, and returns its offset.
  template <class T>
  [[nodiscard]] std::size_t add(std::size_t count) noexcept {
    constexpr std::size_t kPlaceBytes = 64;
    static_assert(alignof(T) <= kPlaceBytes);
    const std::size_t at = size_;
    size_ += (count * sizeof(T) + kPlaceBytes - 1) / kPlaceBytes * kPlaceBytes;
    return at;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::size_t size_ = 0;
};

/// TSan builds: makes an owner's mapping of `fd` known to Mapping::of_peer, and forgets it. No-ops otherwise.
void note_owner_mapping(int fd, std::byte* data) noexcept;
void forget_owner_mapping(const std::byte* data) noexcept;

/// Registers this process for both kinds of expedited membarrier. kPermission if the kernel or seccomp refuses.
[[nodiscard]] Result<void> register_membarriers();
/// A full barrier on every running thread of every registered process: it orders the caller's earlier stores before its
/// later loads, against peers that do plain stores and then loads, so that peers need no fence of their own.
void barrier_all_processes() noexcept;
/// The same for this process's threads.
void barrier_this_process() noexcept;

/// One message with descriptors over a SOCK_SEQPACKET Unix socket.
inline constexpr std::size_t kMaxFds = 4;
struct Fds {
  std::array<Fd, kMaxFds> fds;
  std::size_t count = 0;
};
/// Sends one message; `rest` is its end. False, with errno, if it could not be sent at once and whole.
[[nodiscard]] bool send_message(int socket, std::span<const std::byte> message, std::span<const int> fds,
                                std::span<const std::byte> rest = {}) noexcept;
/// Returns the bytes received (0: the peer closed), or -1 with errno. Descriptors are close-on-exec. A truncated
/// message or too many descriptors is EBADMSG. `sender` is the user who may send memfds and eventfds. In the place of
/// any other descriptor there is none: to close a file may wait for the file system, which the peer may serve, so a
/// thread of its own closes it. Without a sender, or while four such threads of a user wait, all are refused.
[[nodiscard]] ssize_t receive_message(int socket, std::span<std::byte> message, Fds& fds,
                                      std::optional<uid_t> sender) noexcept;
/// Whether a descriptor is an eventfd, as the kernel tells it.
[[nodiscard]] bool is_eventfd(int fd) noexcept;

}  // namespace verbena::nic::soft
