// The Linux calls that the soft NIC stands on: descriptors, sealed memfds, mappings, membarrier, sockets with fds.
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
/// owner's addresses, because TSan cannot see a race through two mappings of one page; it is then not unmapped here.
class Mapping {
 public:
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return data_.get_deleter().size; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  enum class Mode : std::uint8_t { kRead, kReadWrite };
  /// Maps all of a memfd that a peer handed over: it must be a memfd of `size` bytes, sealed against shrinking and
  /// further seals (so that the peer can neither take pages away nor unseal), else kProtocol.
  [[nodiscard]] static Result<Mapping> of_peer(int fd, std::size_t size, Mode mode);
  /// A new memfd of `size` bytes, mapped read-write here, that others can only map as `others` says. Sealed.
  struct Owned;
  [[nodiscard]] static Result<Owned> create(const char* name, std::size_t size, Mode others);

 private:
  std::unique_ptr<std::byte, Unmapper> data_;
};
struct Mapping::Owned {
  Fd fd;
  Mapping mapping;
};

using host::LazyMemory;

/// Arrays one behind another in one piece of memory, each on a cache line of its own.
class Places {
 public:
  /// Where an array begins.
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

/// Registers this process for both kinds of expedited membarrier. kPermission when the kernel or seccomp refuses.
[[nodiscard]] Result<void> register_membarriers();
/// A full barrier on every running thread of every registered process: orders a store of the caller before its later
/// loads against plain stores-then-loads of peers, so that peers need no fence of their own.
void barrier_all_processes() noexcept;
/// The same for this process's threads.
void barrier_this_process() noexcept;

/// One message with descriptors over a SOCK_SEQPACKET Unix socket.
inline constexpr std::size_t kMaxFds = 4;
struct Fds {
  std::array<Fd, kMaxFds> fds;
  std::size_t count = 0;
};
/// Sends one message, of which `rest` is the end. False with errno set when it could not be sent at once and whole.
[[nodiscard]] bool send_message(int socket, std::span<const std::byte> message, std::span<const int> fds,
                                std::span<const std::byte> rest = {}) noexcept;
/// Bytes received (0: the peer closed); -1 with errno. Descriptors are close-on-exec. A truncated message or too many
/// descriptors is EBADMSG.
[[nodiscard]] ssize_t receive_message(int socket, std::span<std::byte> message, Fds& fds) noexcept;
/// Whether the kernel says that a descriptor is an eventfd.
[[nodiscard]] bool is_eventfd(int fd) noexcept;

}  // namespace verbena::nic::soft
