// Pages that never come, as on a FUSE or NFS mount whose server is gone.
#pragma once

#include "base/fd.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace verbena::test {

/// Takes the pages of private anonymous memory away: whoever touches one waits until the descriptor is closed. Empty,
/// with errno, where the kernel hands out no userfaultfd that stops its own accesses (root, or
/// vm.unprivileged_userfaultfd).
[[nodiscard]] inline Fd take_pages_away(void* data, std::size_t size) {
  Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register range{};
  range.range = {reinterpret_cast<std::uint64_t>(data), size};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (!fd || ::ioctl(fd.get(), UFFDIO_API, &api) != 0 || ::ioctl(fd.get(), UFFDIO_REGISTER, &range) != 0 ||
      ::madvise(data, size, MADV_DONTNEED) != 0)
    return {};
  return fd;
}

}  // namespace verbena::test
