// Memory that lies in no arena: everything that an arena's can do, if slower.
#include "emulated.hpp"
#include "fixture.hpp"
#include "nic/soft/soft_nic.hpp"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

namespace verbena::nic::conformance {
namespace {

using test::all_are;
using test::fill;
using test::matches;

constexpr std::size_t kOutsideBytes = std::size_t{1} << 20;
constexpr int kWriteable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/// Each side has pages of its own, with pages on either side that are not there.
class Outside : public Pair {
 protected:
  struct Pages {
    std::byte* data = nullptr;
    Mr region;
    [[nodiscard]] std::uint64_t address(std::size_t offset = 0) const {
      return reinterpret_cast<std::uint64_t>(data) + offset;
    }
    [[nodiscard]] std::span<std::byte> bytes(std::size_t offset, std::size_t length) const {
      return {data + offset, length};
    }
    [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const {
      return {address(offset), static_cast<std::uint32_t>(length), region->lkey};
    }
  };
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Pair::SetUp());
    ASSERT_NO_FATAL_FAILURE(make_pages(near_, a));
    ASSERT_NO_FATAL_FAILURE(make_pages(far_, b));
    ASSERT_NO_FATAL_FAILURE(import(a, b, far_.region.get()));
    std::memset(far_.data, std::to_integer<int>(kCanary), kOutsideBytes);
  }
  void TearDown() override {
    for (Pages* pages : {&near_, &far_}) {
      pages->region.reset();
      if (pages->data != nullptr) ::munmap(pages->data - 4096, kOutsideBytes + 8192);
    }
    Pair::TearDown();
  }
  static void make_pages(Pages& pages, const Side& side) {
    void* all = ::mmap(nullptr, kOutsideBytes + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(all, MAP_FAILED);
    pages.data = static_cast<std::byte*>(all) + 4096;
    ASSERT_EQ(::mprotect(pages.data, kOutsideBytes, PROT_READ | PROT_WRITE), 0);
    pages.region = reg(pages, side, kOutsideBytes, kAllAccess);
    ASSERT_TRUE(pages.region);
  }
  static Mr reg(const Pages& pages, const Side& side, std::size_t length, int access) {
    const auto made = side.nic->reg_mr(side.pd.get(), pages.data, length, pages.address(), access);
    EXPECT_OK(made);
    return made ? Mr(*side.nic, *made) : Mr();
  }
  Request& to(Request& request, std::size_t offset) const {
    return request.remote(far_.address(offset), far_.region->rkey);
  }
  /// All that is done to such memory.
  void exercise() {
    for (const std::size_t size : {1UZ, 8UZ, 4096UZ, 70001UZ, kOutsideBytes - 100}) {
      SCOPED_TRACE(size);
      fill(near_.bytes(0, size), size);
      ASSERT_EQ(to(Request(IBV_WR_RDMA_WRITE, 1).gather(near_.sge(0, size)), 64).post(a), 0);
      EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
      EXPECT_TRUE(matches(far_.bytes(64, size), size));
      EXPECT_EQ(far_.data[63], kCanary);
      std::memset(near_.data, 0, size);
      const std::size_t half = size / 2;
      Request read(IBV_WR_RDMA_READ, 2);
      read.gather(near_.sge(half, size - half)).gather(near_.sge(0, half));
      ASSERT_EQ(read.remote(far_.address(64), far_.region->rkey).post(a), 0);
      EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
      EXPECT_EQ(std::memcmp(near_.data + half, far_.data + 64, size - half), 0);
      EXPECT_EQ(std::memcmp(near_.data, far_.data + 64 + (size - half), half), 0);
    }
    auto& word = *reinterpret_cast<std::uint64_t*>(far_.data);
    word = 40;
    ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 3)
                  .gather(near_.sge(0, 8))
                  .atomic(far_.address(), far_.region->rkey, 2)
                  .post(a),
              0);
    ASSERT_EQ(Request(IBV_WR_ATOMIC_CMP_AND_SWP, 4)
                  .gather(near_.sge(8, 8))
                  .atomic(far_.address(), far_.region->rkey, 42, 7)
                  .post(a),
              0);
    const auto out = sent(a, 2);
    EXPECT_TRUE(succeeded(out[0], 3, IBV_WC_FETCH_ADD));
    EXPECT_TRUE(succeeded(out[1], 4, IBV_WC_COMP_SWAP));
    EXPECT_EQ(reinterpret_cast<std::uint64_t*>(near_.data)[0], 40U);
    EXPECT_EQ(reinterpret_cast<std::uint64_t*>(near_.data)[1], 42U);
    EXPECT_EQ(word, 7U);
    ASSERT_EQ(b.post_recv(9, b.sge(0, 64)), 0);
    ASSERT_EQ(to(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 5).gather(near_.sge(0, 300)).immediate(6), 0).post(a), 0);
    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, 9, IBV_WC_RECV_RDMA_WITH_IMM));
    EXPECT_EQ(in.byte_len, 300U);
    EXPECT_EQ(std::memcmp(near_.data, far_.data, 300), 0);
    EXPECT_TRUE(succeeded(sent(a), 5, IBV_WC_RDMA_WRITE));
  }
  /// One byte past the end, without the right, and with a key that is gone: nothing is written.
  void exercise_refusals() {
    const auto refused = [&](std::uint64_t address, std::uint32_t rkey) {
      std::memset(far_.data, std::to_integer<int>(kCanary), kOutsideBytes);
      EXPECT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(near_.sge(0, 64)).remote(address, rkey).post(a), 0);
      EXPECT_TRUE(failed_as(sent(a), 1, IBV_WC_REM_ACCESS_ERR));
      EXPECT_TRUE(all_are(far_.bytes(0, kOutsideBytes), kCanary));
      reconnect();
      import(a, b, far_.region.get());
    };
    refused(far_.address(kOutsideBytes - 63), far_.region->rkey);
    Mr readable = reg(far_, b, kOutsideBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    try_import(a, b, readable.get());
    refused(far_.address(), readable->rkey);
    Mr gone = reg(far_, b, kOutsideBytes, kWriteable);
    import(a, b, gone.get());
    const std::uint32_t rkey = gone->rkey;
    ASSERT_OK(b.nic->dereg_mr(gone.release(), soon()));
    refused(far_.address(), rkey);
  }

  Pages near_;
  Pages far_;
};
VERBENA_FOR_EVERY_NIC(Outside);

TEST_P(Outside, EverythingWorks) { exercise(); }
TEST_P(Outside, RefusalsWork) { exercise_refusals(); }

TEST_P(Outside, SendsAndReceivesUseIt) {
  for (const std::size_t size : {8UZ, 100UZ, 100000UZ}) {
    fill(near_.bytes(0, size), size);
    ASSERT_EQ(b.post_recv(1, far_.sge(0, size)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(near_.sge(0, size)).post(a), 0);
    EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    EXPECT_TRUE(matches(far_.bytes(0, size), size));
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Outside, WhatIsNotThereIsNotRegistered) {
  VERBENA_SKIP_IN_EMULATOR("hands no madvise on, which finds that memory is not there");
  for (const auto& [from, length] : {std::pair{near_.data - 4096, 4096UZ}, std::pair{near_.data, kOutsideBytes + 1}}) {
    const auto made = a.nic->reg_mr(a.pd.get(), from, length, reinterpret_cast<std::uint64_t>(from), kAllAccess);
    EXPECT_FALSE(made.has_value());
    if (made) {
      ASSERT_OK(a.nic->dereg_mr(*made, soon()));
    }
  }
}

// --- the soft NIC -----------------------------------------------------------------------------------------------

class SoftOutside : public Outside {
 protected:
  /// Runs `body` in a thread that may not call process_vm_readv and writev, and neither may the NIC's that copies.
  template <class Body>
  void without_copies(Body&& body) {
    std::thread([&] {
      constexpr auto kNumber = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
      std::array<sock_filter, 5> filter = {
          {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
      const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
      ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
      ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
      ASSERT_EQ(::syscall(SYS_process_vm_readv, ::getpid(), nullptr, 0, nullptr, 0, 0), -1);
      ASSERT_EQ(errno, EPERM);
      // Starts the NIC's thread anew, as a child of this one.
      ASSERT_NO_FATAL_FAILURE(reconnect());
      ASSERT_NO_FATAL_FAILURE(import(a, b, far_.region.get()));
      body();
    }).join();
  }
};
VERBENA_FOR_THE_SOFT_NIC(SoftOutside);

TEST_P(SoftOutside, WorksWhereTheKernelRefuses) {
  VERBENA_SKIP_IN_EMULATOR("has no seccomp filters; without process_vm_readv the other tests have it refused anyway");
  without_copies([&] {
    const auto before = soft::thread_counters;
    exercise();
    const auto after = soft::thread_counters;
    EXPECT_EQ(after.copies - before.copies, 1U);  // The one that was refused.
    EXPECT_GT(after.services - before.services, 30U);
  });
}

TEST_P(SoftOutside, RefusesWhereTheKernelDoes) {
  VERBENA_SKIP_IN_EMULATOR("has no seccomp filters");
  without_copies([&] { exercise_refusals(); });
}

TEST_P(SoftOutside, CopiesAreCounted) {
  VERBENA_SKIP_IN_EMULATOR("has no process_vm_writev: the peer's service thread copies");
  const auto before = soft::thread_counters;
  ASSERT_EQ(to(Request(IBV_WR_RDMA_WRITE, 1).gather(near_.sge(0, 4096)), 0).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  EXPECT_EQ(soft::thread_counters.copies - before.copies, 1U);
  EXPECT_EQ(soft::thread_counters.services, before.services);
}

// A copy is over for the memory's owner when the kernel is done, whether its initiator polls or not.
TEST_P(SoftOutside, DeregisteringWaitsForNoPoll) {
  ASSERT_EQ(to(Request(IBV_WR_RDMA_READ, 1).gather(near_.sge(0, kOutsideBytes)), 0).post(a), 0);
  ASSERT_OK(b.nic->dereg_mr(far_.region.release(), soon()));
  // What was under way by then is complete, or refused.
  const ibv_wc wc = sent(a);
  EXPECT_TRUE(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_REM_ACCESS_ERR) << wc.status;
}

// Pages that are taken away under a region are found by the copy, and nobody dies of it.
TEST_P(SoftOutside, MemoryThatWentIsAnError) {
  VERBENA_SKIP_IN_EMULATOR(
      "has no process_vm_writev, which finds it; a service thread that copies does not survive it");
  ASSERT_EQ(::mprotect(far_.data + kOutsideBytes / 2, 4096, PROT_NONE), 0);
  ASSERT_EQ(to(Request(IBV_WR_RDMA_WRITE, 1).gather(near_.sge(0, kOutsideBytes)), 0).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 1, IBV_WC_REM_ACCESS_ERR));
}

// The one who waits for the peer's service thread sleeps, and is woken by its answer.
TEST_P(SoftOutside, SleepersAreWoken) {
  VERBENA_SKIP_IN_CHAOS();
  for (std::uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, i)
                  .gather(near_.sge(0, 8))
                  .atomic(far_.address(), far_.region->rkey, 1)
                  .post(a),
              0);
    ASSERT_NO_FATAL_FAILURE(a.sleep_until_sent());
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_FETCH_ADD));
  }
}

// Windows of type 2 reach it too.
TEST_P(SoftOutside, WindowsAreBoundOnIt) {
  const Mr region = reg(far_, b, kOutsideBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  const auto made = b.nic->alloc_mw(b.pd.get());
  ASSERT_OK(made);
  const Mw window(*b.nic, *made);
  const std::uint32_t rkey = ibv_inc_rkey(window->rkey);
  const ibv_mw_bind_info info{region.get(), far_.address(128), 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC};
  ASSERT_EQ(Request(IBV_WR_BIND_MW, 1).bind(window.get(), rkey, info).post(b), 0);
  EXPECT_TRUE(succeeded(sent(b), 1, IBV_WC_BIND_MW));
  ASSERT_OK(a.nic->import_window(a.qp.get(), b.nic->window_of(rkey, info), soon()));
  fill(near_.bytes(0, 64), 3);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(near_.sge(0, 64)).remote(far_.address(128), rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(far_.bytes(128, 64), 3));
  ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 3).gather(near_.sge(0, 8)).atomic(far_.address(128), rkey, 1).post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 3, IBV_WC_FETCH_ADD));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 4).gather(near_.sge(0, 64)).remote(far_.address(129), rkey).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 4, IBV_WC_REM_ACCESS_ERR));
}

}  // namespace
}  // namespace verbena::nic::conformance
