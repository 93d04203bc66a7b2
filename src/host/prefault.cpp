#include "host/prefault.hpp"

#include "base/check.hpp"
#include "host/topology.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; the headers of Debian 11 do not have it.
#endif

namespace verbena::host {

namespace {

constexpr unsigned kMostThreads = 64;
// Small enough that threads finish together, large enough that the counter and the system call cost little.
constexpr std::size_t kChunkBytes = std::size_t{16} << 20;
// A pending signal causes EINTR and EAGAIN. A call that makes no progress so many times has failed.
constexpr int kMaxTries = 1000;

struct Job {
  std::span<std::byte> range;
  int fd;
  std::size_t page_bytes;
  std::size_t chunk_bytes;
  std::atomic<std::size_t> next{0};
  std::atomic<int> error{0};
};

/// Repeats `call`; 0, or the errno of its final failure.
template <class Call>
int retried(Call&& call) noexcept {
  int error = EINTR;
  for (int i = 0; i < kMaxTries && (error == EINTR || error == EAGAIN); ++i) error = call() == 0 ? 0 : errno;
  return error;
}

/// Linux before 5.14: fallocate allocates the pages and returns errors where a touch would raise SIGBUS; the touches
/// after it only fill in page tables.
int allocate_and_touch(const Job& job, std::size_t offset, std::span<std::byte> chunk) noexcept {
  const int error =
      retried([&] { return fallocate(job.fd, 0, static_cast<off_t>(offset), static_cast<off_t>(chunk.size())); });
  if (error != 0) return error == ENOSPC ? ENOMEM : error;
  for (std::size_t at = 0; at < chunk.size(); at += job.page_bytes)
    // Volatile, because a compiler may leave out an atomic that changes nothing.
    __atomic_fetch_or(reinterpret_cast<volatile unsigned char*>(&chunk[at]), 0, __ATOMIC_RELAXED);
  return 0;
}

int populate(const Job& job, std::size_t offset) noexcept {
  const auto chunk = job.range.subspan(offset, std::min(job.chunk_bytes, job.range.size() - offset));
  const int error = retried([&] { return madvise(chunk.data(), chunk.size(), MADV_POPULATE_WRITE); });
  return error == EINVAL || error == ENOSYS ? allocate_and_touch(job, offset, chunk) : error;
}

std::atomic<std::uint64_t> faulted_in{0};

void work(Job& job) noexcept {
  while (job.error.load(std::memory_order_relaxed) == 0) {
    const std::size_t offset = job.next.fetch_add(job.chunk_bytes, std::memory_order_relaxed);
    if (offset >= job.range.size()) return;
    if (const int error = populate(job, offset); error != 0) job.error.store(error, std::memory_order_relaxed);
    faulted_in.fetch_add(std::min(job.chunk_bytes, job.range.size() - offset), std::memory_order_relaxed);
  }
}

void* thread_main(void* argument) {
  name_this_thread("verbena-fault");
  work(*static_cast<Job*>(argument));
  return nullptr;
}

}  // namespace

std::uint64_t prefaulted_bytes() noexcept { return faulted_in.load(std::memory_order_relaxed); }

int prefault(std::span<std::byte> range, int fd, std::size_t page_bytes, unsigned threads) noexcept {
  VERBENA_CHECK(threads >= 1 && threads <= kMostThreads);
  Job job{.range = range, .fd = fd, .page_bytes = page_bytes, .chunk_bytes = std::max(kChunkBytes, page_bytes)};
  const std::size_t chunks = (range.size() + job.chunk_bytes - 1) / job.chunk_bytes;
  const auto helpers = static_cast<unsigned>(std::min<std::size_t>(threads, chunks)) - 1;

  // Threads inherit the mask, so they never handle signals of the caller's program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::array<pthread_t, kMostThreads> started;
  unsigned count = 0;
  while (count < helpers && pthread_create(&started[count], nullptr, thread_main, &job) == 0) ++count;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);

  work(job);
  for (unsigned i = 0; i < count; ++i) pthread_join(started[i], nullptr);
  return job.error.load(std::memory_order_relaxed);
}

}  // namespace verbena::host
