// A file whose close waits for as long as the test likes, as one of a dead file server does.
#pragma once

#include "base/fd.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace verbena::test {

/// A FUSE file system of one file, served by a thread of this object, which never answers FUSE_FLUSH. Needs root; moves
/// this process to a mount namespace of its own. Its end aborts all requests.
class StuckFile {
 public:
  StuckFile() {
    std::array<char, 32> path{"/tmp/verbena-stuck-XXXXXX"};
    if (mkdtemp(path.data()) == nullptr) return;
    directory_ = path.data();
    device_ = Fd(open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!device_ || unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    const std::string options =
        "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
    if (mount("verbena", directory_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return;
    is_mounted_ = true;
    server_ = std::thread([this] { serve(); });
    file_ = Fd(open((directory_ + "/file").c_str(), O_RDWR | O_CLOEXEC));
  }
  StuckFile(const StuckFile&) = delete;
  StuckFile& operator=(const StuckFile&) = delete;
  ~StuckFile() {
    if (is_mounted_) (void)umount2(directory_.c_str(), MNT_FORCE | MNT_DETACH);
    if (server_.joinable()) server_.join();
    file_.reset();
    (void)rmdir(directory_.c_str());
  }
  /// -1: this machine lets nobody mount FUSE file systems.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

 private:
  template <class Body>
  void answer(std::uint64_t request, const Body& body) const {
    struct {
      fuse_out_header header;
      Body body;
    } const reply{.header = {.len = sizeof reply, .error = 0, .unique = request}, .body = body};
    (void)!write(device_.get(), &reply, sizeof reply);
  }
  static fuse_attr attributes_of(std::uint64_t node) {
    fuse_attr attributes{};
    attributes.ino = node;
    attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755U : S_IFREG | 0666U;
    attributes.nlink = 1;
    return attributes;
  }
  void serve() const {
    alignas(fuse_in_header) std::array<std::byte, (std::size_t{1} << 16) + 4096> request{};
    while (read(device_.get(), request.data(), request.size()) > 0) {
      fuse_in_header in{};
      std::memcpy(&in, request.data(), sizeof in);
      switch (in.opcode) {
        case FUSE_INIT: {
          fuse_init_out out{};
          out.major = FUSE_KERNEL_VERSION;
          out.minor = FUSE_KERNEL_MINOR_VERSION;
          out.max_write = 4096;
          answer(in.unique, out);
          break;
        }
        case FUSE_LOOKUP: {
          fuse_entry_out out{};
          out.nodeid = 2;
          out.attr = attributes_of(2);
          answer(in.unique, out);
          break;
        }
        case FUSE_GETATTR: {
          fuse_attr_out out{};
          out.attr = attributes_of(in.nodeid);
          answer(in.unique, out);
          break;
        }
        case FUSE_OPEN: answer(in.unique, fuse_open_out{}); break;
        case FUSE_FLUSH:
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT: break;  // The first is never answered, the others need no answer.
        default: {
          const fuse_out_header no{.len = sizeof no, .error = -ENOSYS, .unique = in.unique};
          (void)!write(device_.get(), &no, sizeof no);
        }
      }
    }
  }

  std::string directory_;
  Fd device_;
  bool is_mounted_ = false;
  std::thread server_;
  Fd file_;
};

}  // namespace verbena::test
