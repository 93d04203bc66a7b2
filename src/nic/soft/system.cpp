#include "nic/soft/system.hpp"

#include "base/cancellation.hpp"
#include "host/mapping.hpp"
#include "host/memory_limits.hpp"
#include "host/thread.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

namespace verbena::nic::soft {

namespace {
#ifdef VERBENA_TSAN
// The pages stay mapped until the owner and every sharer have released them, as with separate mappings.
struct OwnerMapping {
  dev_t device;
  ino_t inode;
  std::byte* data;
  std::size_t unmap_bytes = 0;  // Set when the owner is gone and the last sharer must unmap.
  unsigned sharers = 0;
};
std::mutex owner_mappings_mutex;
std::vector<OwnerMapping>& owner_mappings() {
  static auto& mappings = *new std::vector<OwnerMapping>();  // For good: a copier may end during the process's exit.
  return mappings;
}
std::byte* share_owner_mapping(const struct stat& file) {
  const std::lock_guard lock(owner_mappings_mutex);
  for (OwnerMapping& entry : owner_mappings()) {
    if (entry.device != file.st_dev || entry.inode != file.st_ino || entry.unmap_bytes != 0) continue;
    ++entry.sharers;
    return entry.data;
  }
  return nullptr;
}
void unshare_owner_mapping(const std::byte* data) {
  const std::lock_guard lock(owner_mappings_mutex);
  auto& mappings = owner_mappings();
  const auto at =
      std::find_if(mappings.begin(), mappings.end(), [data](const OwnerMapping& entry) { return entry.data == data; });
  if (at == mappings.end() || --at->sharers != 0 || at->unmap_bytes == 0) return;
  ::munmap(at->data, at->unmap_bytes);
  mappings.erase(at);
}
#endif
}  // namespace

void note_owner_mapping([[maybe_unused]] int fd, [[maybe_unused]] std::byte* data) noexcept {
#ifdef VERBENA_TSAN
  struct stat file{};
  if (::fstat(fd, &file) != 0) return;
  const std::lock_guard lock(owner_mappings_mutex);
  owner_mappings().push_back({file.st_dev, file.st_ino, data});
#endif
}

void forget_owner_mapping([[maybe_unused]] const std::byte* data) noexcept {
#ifdef VERBENA_TSAN
  const std::lock_guard lock(owner_mappings_mutex);
  std::erase_if(owner_mappings(), [data](const OwnerMapping& entry) { return entry.data == data; });
#endif
}

namespace {
/// Ends an owner's mapping.
void unmap_owned(std::byte* data, std::size_t size) noexcept {
#ifdef VERBENA_TSAN
  {
    const std::lock_guard lock(owner_mappings_mutex);
    for (OwnerMapping& entry : owner_mappings()) {
      if (entry.data != data || entry.sharers == 0) continue;
      entry.unmap_bytes = size;
      return;
    }
  }
  forget_owner_mapping(data);
#endif
  ::munmap(data, size);
}
}  // namespace

void Unmapper::operator()(std::byte* data) const noexcept {
  if (is_owned) return unmap_owned(data, size);
#ifdef VERBENA_TSAN
  unshare_owner_mapping(data);
#endif
}

Result<Mapping> Mapping::of_peer(int fd, std::size_t size, Mode mode) {
  struct stat file{};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || ::fstat(fd, &file) != 0) {
    return fail(Status::kProtocol, "fcntl", errno, "the peer handed over a descriptor that is not a sealed memfd");
  }
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if ((seals & kNeeded) != kNeeded) {
    return fail(
        Status::kProtocol, "fcntl", 0,
        "the peer's memory is not sealed against shrinking (seals {:#x}): it could take pages away from under us",
        seals);
  }
  struct statfs system{};
  if (::fstatfs(fd, &system) != 0 || (system.f_type == HUGETLBFS_MAGIC && (seals & F_SEAL_FUTURE_WRITE) == 0)) {
    return fail(Status::kProtocol, "fstatfs", 0,
                "the peer's memory is of huge pages and not sealed against writing: it could punch holes into it, and "
                "touching one would raise SIGBUS");
  }
  if (static_cast<std::uint64_t>(file.st_size) != size || size == 0) {
    return fail(Status::kProtocol, "fstat", 0, "the peer's memory has {} bytes, not the {} it announced", file.st_size,
                size);
  }
  Mapping mapping;
#ifdef VERBENA_TSAN
  if (std::byte* owner = share_owner_mapping(file); owner != nullptr) {
    mapping.data_ = {owner, {.size = size, .is_owned = false}};
    return mapping;
  }
#endif
  const int protection = mode == Mode::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  std::byte* const data = host::map_aligned(fd, size, static_cast<std::size_t>(system.f_bsize), protection);
  if (data == nullptr) return fail_system("mmap", errno, "mapping a peer's memory");
  (void)::madvise(data, size, MADV_DONTFORK);  // A child would keep using it after the peer has freed it.
  mapping.data_ = {data, {.size = size}};
  return mapping;
}

bool is_kept(int fd) noexcept {
  // Either seal refuses FALLOC_FL_PUNCH_HOLE and MADV_REMOVE.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0;
}

bool is_huge(int fd) noexcept {
  struct statfs system{};
  return ::fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
}

bool is_root_of_host() noexcept {
  if (::geteuid() != 0) return false;
  // In a user namespace of its own, root is another user to the rest of the host, and this map is another one.
  constexpr std::string_view kWhole = "         0          0 4294967295\n";
  std::array<char, 64> map{};
  const Fd file(::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC));
  return file && ::read(file.get(), map.data(), map.size()) == static_cast<ssize_t>(kWhole.size()) &&
         std::string_view(map.data(), kWhole.size()) == kWhole;
}

bool is_whole(int fd, std::size_t size, bool for_good) noexcept {
  if (for_good && !is_kept(fd)) return false;
  // Blocks alone would not do: those beyond the file's end count, too. A file of huge pages names no holes.
  struct stat file{};
  if (::fstat(fd, &file) != 0 || static_cast<std::size_t>(file.st_blocks) * 512 < size) return false;
  return ::lseek(fd, 0, SEEK_HOLE) >= static_cast<off_t>(size);
}

Result<Mapping::Owned> Mapping::create(const char* name, std::size_t size, Mode others) {
  VERBENA_TRY(host::check_process_limits(size));  // Growing a file beyond RLIMIT_FSIZE raises a signal.
  Owned owned;
  owned.fd = Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!owned.fd) return fail_system("memfd_create", errno, "making memory to share with peers");
  if (::ftruncate(owned.fd.get(), static_cast<off_t>(size)) != 0) {
    return fail_system("ftruncate", errno, "sizing memory to share with peers");
  }
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, owned.fd.get(), 0);
  if (data == MAP_FAILED) return fail_system("mmap", errno, "mapping memory to share with peers");
  (void)::madvise(data, size, MADV_DONTFORK);
  owned.mapping.data_ = {static_cast<std::byte*>(data), {.size = size}};
  note_owner_mapping(owned.fd.get(), owned.mapping.data());
  // FUTURE_WRITE allows the writable mapping made above and refuses every later one, in any process.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (others == Mode::kRead ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(owned.fd.get(), F_ADD_SEALS, seals) != 0) {
    return fail_system("fcntl", errno, "sealing memory to share with peers");
  }
  return owned;
}

namespace {
int membarrier(int command) noexcept { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }
}  // namespace

Result<void> register_membarriers() {
  if (membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) != 0 ||
      membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0) {
    return fail(
        Status::kPermission, "membarrier", errno,
        "the soft NIC needs membarrier(2) (Linux 4.16 and later): allow it in the seccomp profile, or use a kernel "
        "with CONFIG_MEMBARRIER");
  }
  return {};
}

// The process is registered, so only a seccomp filter installed since then can refuse. The slower global command is the
// only other way to order; if that is refused too, the protocol cannot go on.
void barrier_all_processes() noexcept {
  if (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) membarrier(MEMBARRIER_CMD_GLOBAL);
}
void barrier_this_process() noexcept {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) membarrier(MEMBARRIER_CMD_GLOBAL);
}

bool send_message(int socket, std::span<const std::byte> message, std::span<const int> fds,
                  std::span<const std::byte> rest) noexcept {
  std::array parts{iovec{const_cast<std::byte*>(message.data()), message.size()},
                   iovec{const_cast<std::byte*>(rest.data()), rest.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(first), fds.data(), sizeof(int) * fds.size());
  }
  const CancellationHeld held;
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(message.size() + rest.size())) return true;
    if (sent < 0 && errno == EINTR) continue;
    if (sent >= 0) errno = EMSGSIZE;
    return false;
  }
}

namespace {
/// Threads that close descriptors of a user's.
struct Closers {
  uid_t user = 0;
  unsigned count = 0;
};
constexpr unsigned kMostClosers = 4;
constinit std::mutex closers_mutex;
constinit std::array<Closers, 16> closers{};

/// The user's, or free ones; null if there are none. Call it under the mutex.
[[nodiscard]] Closers* closers_of(uid_t user) noexcept {
  auto* found = std::ranges::find_if(closers, [&](const Closers& one) { return one.count != 0 && one.user == user; });
  if (found == closers.end()) found = std::ranges::find(closers, 0U, &Closers::count);
  return found == closers.end() ? nullptr : found;
}

[[nodiscard]] bool may_send_descriptors(uid_t user) noexcept {
  const std::lock_guard lock(closers_mutex);
  const Closers* const own = closers_of(user);
  return own != nullptr && own->count < kMostClosers;
}

/// Without a thread the descriptor stays open, which harms less than to wait.
void close_elsewhere(Fd fd, uid_t user) noexcept {
  const int number = fd.release();
  const std::lock_guard lock(closers_mutex);
  Closers* const own = closers_of(user);
  if (own == nullptr) return;
  auto thread = host::start_thread("verbena-close", [number, own] {
    ::close(number);
    const std::lock_guard done(closers_mutex);
    --own->count;
  });
  if (!thread) return;
  *own = {.user = user, .count = own->count + 1};
  thread->detach();
}

/// Whether closing it here waits for nobody.
[[nodiscard]] bool is_memory_or_event(int fd) noexcept { return ::fcntl(fd, F_GET_SEALS) >= 0 || is_eventfd(fd); }
}  // namespace

ssize_t receive_message(int socket, std::span<std::byte> message, Fds& fds, std::optional<uid_t> sender) noexcept {
  fds = Fds{};
  iovec part{message.data(), message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (sender && may_send_descriptors(*sender)) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  const CancellationHeld held;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr; entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof fd);
      Fd owner(fd);
      if (!is_memory_or_event(fd)) close_elsewhere(std::exchange(owner, Fd()), *sender);
      if (fds.count < kMaxFds) fds.fds[fds.count++] = std::move(owner);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    fds = Fds{};
    errno = EBADMSG;
    return -1;
  }
  return got;
}

bool is_eventfd(int fd) noexcept {
  constexpr std::string_view kEventFd = "anon_inode:[eventfd]";  // Not a path: those begin with a slash.
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  char target[64];
  const ssize_t length = ::readlink(path, target, sizeof target);
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)) == kEventFd;
}

}  // namespace verbena::nic::soft
