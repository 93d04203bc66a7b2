// Every opcode at every size that some implementation treats apart, and every field of its completions.
#include "fixture.hpp"

#include <arpa/inet.h>

#include <array>
#include <cstring>
#include <limits>

namespace verbena::nic::conformance {
namespace {

using test::all_are;
using test::fill;
using test::matches;

constexpr std::array<std::size_t, 15> kOddSizes = {0,  1,  7,    8,    47,   48,        49,         63,
                                                   64, 65, 4095, 4096, 4097, 64 * 1024, 1024 * 1024};
constexpr std::size_t kSource = 0;
constexpr std::size_t kMargin = 64;  // Bytes after the target that must not change.

class Opcode : public Pair {
 protected:
  void canary(Side& side, std::size_t length) {
    const auto bytes = side.bytes(kTarget, length + kMargin);
    std::memset(bytes.data(), std::to_integer<int>(kCanary), bytes.size());
  }
  void expect_written(Side& side, std::size_t length, std::uint64_t seed) {
    EXPECT_TRUE(matches(side.bytes(kTarget, length), seed));
    EXPECT_TRUE(all_are(side.bytes(kTarget + length, kMargin), kCanary));
  }
};
VERBENA_FOR_EVERY_NIC(Opcode);

TEST_P(Opcode, Send) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    fill(a.bytes(kSource, size), size);
    canary(b, size);
    ASSERT_EQ(b.post_recv(size + 1, b.sge(kTarget, size + kMargin)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, size + 2).gather(a.sge(kSource, size)).post(a), 0);

    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, size + 1, IBV_WC_RECV));
    EXPECT_EQ(in.byte_len, size);
    EXPECT_EQ(in.qp_num, b.qp->qp_num);
    EXPECT_EQ(in.wc_flags & IBV_WC_WITH_IMM, 0U);
    expect_written(b, size, size);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, size + 2, IBV_WC_SEND));
    EXPECT_EQ(out.qp_num, a.qp->qp_num);
  }
}

TEST_P(Opcode, SendFillsItsReceiveExactly) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    fill(a.bytes(kSource, size), size + 9);
    canary(b, size);
    ASSERT_EQ(b.post_recv(1, b.sge(kTarget, size)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(kSource, size)).post(a), 0);
    EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
    expect_written(b, size, size + 9);
  }
}

TEST_P(Opcode, SendBothWaysAtOnce) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    for (Side* side : {&a, &b}) {
      fill(side->bytes(kSource, size), side == &a ? 1 : 2);
      canary(*side, size);
      ASSERT_EQ(side->post_recv(1, side->sge(kTarget, size)), 0);
    }
    for (Side* side : {&a, &b}) ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(side->sge(kSource, size)).post(*side), 0);
    for (Side* side : {&a, &b}) {
      EXPECT_TRUE(succeeded(received(*side), 1, IBV_WC_RECV));
      EXPECT_TRUE(succeeded(sent(*side), 2, IBV_WC_SEND));
      expect_written(*side, size, side == &a ? 2 : 1);
    }
  }
}

TEST_P(Opcode, SendWithImmediate) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    const std::uint32_t immediate = htonl(0xC0FFEE00U + static_cast<std::uint32_t>(size));
    fill(a.bytes(kSource, size), size);
    canary(b, size);
    ASSERT_EQ(b.post_recv(1, b.sge(kTarget, size + kMargin)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND_WITH_IMM, 2).gather(a.sge(kSource, size)).immediate(immediate).post(a), 0);
    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, 1, IBV_WC_RECV));
    EXPECT_EQ(in.byte_len, size);
    EXPECT_EQ(in.wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(in.imm_data, immediate);
    EXPECT_EQ(in.qp_num, b.qp->qp_num);
    expect_written(b, size, size);
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Opcode, Write) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    fill(a.bytes(kSource, size), size);
    canary(b, size);
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(kSource, size)).remote(b, kTarget).post(a), 0);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, 2, IBV_WC_RDMA_WRITE));
    EXPECT_EQ(out.qp_num, a.qp->qp_num);
    expect_written(b, size, size);
  }
  expect_quiet(2ms);  // The target is not told.
}

TEST_P(Opcode, WriteToUnalignedAddresses) {
  for (std::size_t shift = 1; shift < 16; ++shift) {
    SCOPED_TRACE(shift);
    constexpr std::size_t kSize = 300;
    fill(a.bytes(kSource + 16 - shift, kSize), shift);
    canary(b, kSize + 16);
    ASSERT_EQ(
        Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(kSource + 16 - shift, kSize)).remote(b, kTarget + shift).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
    EXPECT_TRUE(all_are(b.bytes(kTarget, shift), kCanary));
    EXPECT_TRUE(matches(b.bytes(kTarget + shift, kSize), shift));
    EXPECT_TRUE(all_are(b.bytes(kTarget + shift + kSize, kMargin), kCanary));
  }
}

TEST_P(Opcode, WriteWithImmediate) {
  constexpr std::size_t kReceive = kTarget - 4096;
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    const std::uint32_t immediate = htonl(0xFEED0000U ^ static_cast<std::uint32_t>(size));
    fill(a.bytes(kSource, size), size);
    canary(b, size);
    std::memset(b.at(kReceive), std::to_integer<int>(kCanary), 64);
    // The receive is used up; its buffers are not.
    ASSERT_EQ(b.post_recv(1, b.sge(kReceive, size % 2 == 0 ? 64 : 0)), 0);
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 2)
                  .gather(a.sge(kSource, size))
                  .remote(b, kTarget)
                  .immediate(immediate)
                  .post(a),
              0);
    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, 1, IBV_WC_RECV_RDMA_WITH_IMM));
    EXPECT_EQ(in.byte_len, size);
    EXPECT_EQ(in.wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(in.imm_data, immediate);
    EXPECT_EQ(in.qp_num, b.qp->qp_num);
    expect_written(b, size, size);
    EXPECT_TRUE(all_are(b.bytes(kReceive, 64), kCanary));
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
  }
}

TEST_P(Opcode, Read) {
  for (const std::size_t size : kOddSizes) {
    SCOPED_TRACE(size);
    fill(b.bytes(kSource, size), size);
    canary(a, size);
    ASSERT_EQ(Request(IBV_WR_RDMA_READ, 2).gather(a.sge(kTarget, size)).remote(b, kSource).post(a), 0);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, 2, IBV_WC_RDMA_READ));
    EXPECT_EQ(out.byte_len, size);
    EXPECT_EQ(out.qp_num, a.qp->qp_num);
    expect_written(a, size, size);
  }
  expect_quiet(2ms);
}

TEST_P(Opcode, CompareAndSwap) {
  constexpr std::uint64_t kOld = 0x0123456789ABCDEF;
  constexpr std::uint64_t kNew = 0xFEDCBA9876543210;
  canary(b, 24);
  canary(a, 24);
  b.word(kTarget + 8) = kOld;
  for (const bool equal : {false, true}) {
    SCOPED_TRACE(equal);
    ASSERT_EQ(Request(IBV_WR_ATOMIC_CMP_AND_SWP, 2)
                  .gather(a.sge(kTarget + 8, 8))
                  .atomic(b.address(kTarget + 8), b.rkey(), equal ? kOld : kOld + 1, kNew)
                  .post(a),
              0);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, 2, IBV_WC_COMP_SWAP));
    EXPECT_EQ(out.byte_len, 8U);
    EXPECT_EQ(out.qp_num, a.qp->qp_num);
    EXPECT_EQ(a.word(kTarget + 8), kOld);
    EXPECT_EQ(b.word(kTarget + 8), equal ? kNew : kOld);
    for (Side* side : {&a, &b}) {
      EXPECT_TRUE(all_are(side->bytes(kTarget, 8), kCanary));
      EXPECT_TRUE(all_are(side->bytes(kTarget + 16, 8), kCanary));
    }
  }
}

TEST_P(Opcode, FetchAndAdd) {
  canary(b, 24);
  std::uint64_t value = std::numeric_limits<std::uint64_t>::max() - 2;  // Wraps around.
  b.word(kTarget + 8) = value;
  for (const std::uint64_t amount :
       {std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{0}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    SCOPED_TRACE(amount);
    ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 2)
                  .gather(a.sge(kTarget, 8))
                  .atomic(b.address(kTarget + 8), b.rkey(), amount)
                  .post(a),
              0);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, 2, IBV_WC_FETCH_ADD));
    EXPECT_EQ(out.byte_len, 8U);
    EXPECT_EQ(a.word(kTarget), value);
    value += amount;
    EXPECT_EQ(b.word(kTarget + 8), value);
    EXPECT_TRUE(all_are(b.bytes(kTarget, 8), kCanary));
    EXPECT_TRUE(all_are(b.bytes(kTarget + 16, 8), kCanary));
  }
}

// --- gather and scatter -----------------------------------------------------------------------------------------

/// Places pieces of these lengths with gaps between them, and says where each is.
struct Pieces {
  std::array<std::size_t, 4> lengths;
  [[nodiscard]] std::size_t total() const { return lengths[0] + lengths[1] + lengths[2] + lengths[3]; }
  [[nodiscard]] std::size_t offset(std::size_t base, std::size_t index) const {
    std::size_t at = base;
    for (std::size_t i = 0; i < index; ++i) at += lengths[i] + 13;
    return at;
  }
  [[nodiscard]] std::size_t first(std::size_t index) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < index; ++i) at += lengths[i];
    return at;
  }
};

constexpr std::array<Pieces, 6> kGathered = {{{{1, 2, 3, 4}},
                                              {{47, 1, 1, 15}},
                                              {{4095, 1, 1, 3}},
                                              {{1, 4096, 7, 896}},
                                              {{65536, 3, 70000, 64461}},
                                              {{1, 1, 1, 99997}}}};
constexpr std::array<Pieces, 6> kScattered = {{{{4, 3, 2, 1}},
                                               {{1, 31, 31, 1}},
                                               {{7, 2048, 2000, 45}},
                                               {{4998, 0, 1, 1}},
                                               {{11, 131072, 0, 68917}},
                                               {{25000, 25001, 24999, 25000}}}};

class Segments : public Opcode {
 protected:
  void spread(Side& side, std::size_t base, const Pieces& pieces, std::uint64_t seed) {
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t k = 0; k < pieces.lengths[i]; ++k)
        *side.at(pieces.offset(base, i) + k) = test::pattern_byte(seed, pieces.first(i) + k);
  }
  void expect_spread(Side& side, std::size_t base, const Pieces& pieces, std::uint64_t seed) {
    for (std::size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(i);
      const std::size_t at = pieces.offset(base, i);
      EXPECT_TRUE(matches(side.bytes(at, pieces.lengths[i]), seed, pieces.first(i)));
      EXPECT_TRUE(all_are(side.bytes(at + pieces.lengths[i], 13), kCanary));
    }
  }
  static ibv_sge piece(Side& side, std::size_t base, const Pieces& pieces, std::size_t i) {
    return side.sge(pieces.offset(base, i), pieces.lengths[i]);
  }
};
VERBENA_FOR_EVERY_NIC(Segments);

TEST_P(Segments, SendGathersAndScatters) {
  for (std::size_t round = 0; round < kGathered.size(); ++round) {
    SCOPED_TRACE(round);
    const Pieces& from = kGathered[round];
    const Pieces& to = kScattered[round];
    ASSERT_EQ(from.total(), to.total());
    spread(a, kSource, from, round);
    canary(b, to.total() + 64);
    ASSERT_EQ(b.post_recv(1, {piece(b, kTarget, to, 0), piece(b, kTarget, to, 1), piece(b, kTarget, to, 2),
                              piece(b, kTarget, to, 3)}),
              0);
    Request request(IBV_WR_SEND, 2);
    for (std::size_t i = 0; i < 4; ++i) request.gather(piece(a, kSource, from, i));
    ASSERT_EQ(request.post(a), 0);
    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, 1, IBV_WC_RECV));
    EXPECT_EQ(in.byte_len, from.total());
    expect_spread(b, kTarget, to, round);
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Segments, ShortSendLeavesTheRestOfTheReceiveAlone) {
  const Pieces to = {{10, 10, 10, 10}};
  for (const std::size_t size : {std::size_t{0}, std::size_t{9}, std::size_t{10}, std::size_t{25}}) {
    SCOPED_TRACE(size);
    fill(a.bytes(kSource, size), size);
    canary(b, 128);
    ASSERT_EQ(b.post_recv(1, {piece(b, kTarget, to, 0), piece(b, kTarget, to, 1), piece(b, kTarget, to, 2),
                              piece(b, kTarget, to, 3)}),
              0);
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(kSource, size)).post(a), 0);
    const ibv_wc in = received(b);
    EXPECT_TRUE(succeeded(in, 1, IBV_WC_RECV));
    EXPECT_EQ(in.byte_len, size);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t at = to.offset(kTarget, i);
      const std::size_t here = size > i * 10 ? std::min<std::size_t>(10, size - i * 10) : 0;
      EXPECT_TRUE(matches(b.bytes(at, here), size, i * 10));
      EXPECT_TRUE(all_are(b.bytes(at + here, 23 - here), kCanary));
    }
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Segments, WriteGathers) {
  for (std::size_t round = 0; round < kGathered.size(); ++round) {
    SCOPED_TRACE(round);
    const Pieces& from = kGathered[round];
    spread(a, kSource, from, round);
    canary(b, from.total());
    Request request(IBV_WR_RDMA_WRITE, 2);
    for (std::size_t i = 0; i < 4; ++i) request.gather(piece(a, kSource, from, i));
    ASSERT_EQ(request.remote(b, kTarget).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
    expect_written(b, from.total(), round);
  }
}

TEST_P(Segments, ReadScatters) {
  for (std::size_t round = 0; round < kScattered.size(); ++round) {
    SCOPED_TRACE(round);
    const Pieces& to = kScattered[round];
    fill(b.bytes(kSource, to.total()), round);
    canary(a, to.total() + 64);
    Request request(IBV_WR_RDMA_READ, 2);
    for (std::size_t i = 0; i < 4; ++i) request.gather(piece(a, kTarget, to, i));
    ASSERT_EQ(request.remote(b, kSource).post(a), 0);
    const ibv_wc out = sent(a);
    EXPECT_TRUE(succeeded(out, 2, IBV_WC_RDMA_READ));
    EXPECT_EQ(out.byte_len, to.total());
    expect_spread(a, kTarget, to, round);
  }
}

TEST_P(Segments, ListsOfRequests) {
  constexpr std::size_t kCount = 24;
  constexpr std::size_t kStride = 1000;
  canary(b, kCount * kStride);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    fill(a.bytes(kSource + i * kStride, kStride), i);
    requests.emplace_back(IBV_WR_RDMA_WRITE, i)
        .gather(a.sge(kSource + i * kStride, kStride))
        .remote(b, kTarget + i * kStride);
  }
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const auto completions = sent(a, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_TRUE(succeeded(completions[i], i, IBV_WC_RDMA_WRITE));
    EXPECT_TRUE(matches(b.bytes(kTarget + i * kStride, kStride), i));
  }
}

// --- inline -----------------------------------------------------------------------------------------------------

class Inline : public Opcode {};
VERBENA_FOR_EVERY_NIC(Inline);

// Inline data is taken while posting: it needs no registration, and the buffer is free at once.
TEST_P(Inline, DataIsTakenWhilePosting) {
  ASSERT_GE(a.qp_options.max_inline, a.options.max_inline);
  std::vector<std::byte> buffer(a.qp_options.max_inline);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    for (std::size_t size = 0; size <= buffer.size(); ++size) {
      SCOPED_TRACE(testing::Message() << "opcode " << opcode << " size " << size);
      const bool takes_receive = opcode != IBV_WR_RDMA_WRITE;
      canary(b, size);
      if (takes_receive) {
        ASSERT_EQ(b.post_recv(1, b.sge(kTarget, size + kMargin)), 0);
      }
      fill({buffer.data(), size}, size + opcode);
      Request request(opcode, 2);
      request.gather({reinterpret_cast<std::uint64_t>(buffer.data()), static_cast<std::uint32_t>(size), 0})
          .immediate(htonl(7))
          .flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE);
      if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM) request.remote(b, kTarget);
      ASSERT_EQ(request.post(a), 0);
      std::memset(buffer.data(), 0x11, size);
      EXPECT_EQ(sent(a).status, IBV_WC_SUCCESS);
      if (takes_receive) {
        const ibv_wc in = received(b);
        EXPECT_EQ(in.status, IBV_WC_SUCCESS);
        EXPECT_EQ(in.byte_len, size);
      }
      expect_written(b, size, size + opcode);
    }
  }
}

// Also while the request has to wait for a receive.
TEST_P(Inline, DataOfAWaitingSend) {
  std::array<std::byte, 60> buffer{};
  fill(buffer, 5);
  const auto address = reinterpret_cast<std::uint64_t>(buffer.data());
  ASSERT_EQ(Request(IBV_WR_SEND, 2)
                .gather({address, 20, 0})
                .gather({address + 20, 1, 0})
                .gather({address + 21, 39, 0})
                .flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE)
                .post(a),
            0);
  buffer.fill(std::byte{0x22});
  canary(b, 60);
  expect_quiet(2ms);
  ASSERT_EQ(b.post_recv(1, b.sge(kTarget, 60)), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  expect_written(b, 60, 5);
}

// --- signaling --------------------------------------------------------------------------------------------------

class Signal : public Bare {};
VERBENA_FOR_EVERY_NIC(Signal);

TEST_P(Signal, OnlySignaledRequestsComplete) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (std::uint64_t round = 0; round < 50; ++round) {
    for (std::uint64_t i = 0; i < 8; ++i) {
      fill(a.bytes(i * 64, 64), round * 8 + i);
      ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i)
                    .gather(a.sge(i * 64, 64))
                    .remote(b, kTarget + i * 64)
                    .flags(i == 7 ? IBV_SEND_SIGNALED : 0)
                    .post(a),
                0);
    }
    EXPECT_TRUE(succeeded(sent(a), 7, IBV_WC_RDMA_WRITE));
    for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(matches(b.bytes(kTarget + i * 64, 64), round * 8 + i));
  }
  expect_quiet(2ms);
}

TEST_P(Signal, UnsignaledSendsCompleteTheirReceives) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(b.post_recv(i, b.sge(i * 64, 64)), 0);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i)).flags(0).post(a), 0);
  const auto completions = received(b, 8);
  for (std::uint64_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(succeeded(completions[i], i, IBV_WC_RECV));
    EXPECT_EQ(completions[i].byte_len, i);
  }
  expect_quiet(2ms);
}

TEST_P(Signal, SignalAllCompletesEverything) {
  ASSERT_NO_FATAL_FAILURE(make_pair({.signal_all = true}));
  for (std::uint64_t i = 0; i < 20; ++i)
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 64)).remote(b, 0).flags(0).post(a), 0);
  const auto completions = sent(a, 20);
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(succeeded(completions[i], i, IBV_WC_RDMA_WRITE));
}

// --- keys -------------------------------------------------------------------------------------------------------

class Keys : public Opcode {};
VERBENA_FOR_EVERY_NIC(Keys);

// Both keys name IO virtual addresses, which may be anything.
TEST_P(Keys, AddressesCountFromTheIova) {
  constexpr std::uint64_t kIova = 0x1234'0000'0000;
  const auto reg_at = [](Side& side, std::size_t offset) {
    const auto region = side.nic->reg_mr(side.pd.get(), side.at(offset), 65536, kIova, kAllAccess);
    EXPECT_OK(region);
    return region ? Mr(*side.nic, *region) : Mr();
  };
  const Mr here = reg_at(a, kSource);
  const Mr there = reg_at(b, kTarget);
  ASSERT_TRUE(here && there);
  import(a, b, there.get());
  EXPECT_EQ(b.nic->window_of(there.get()).address, kIova);
  EXPECT_EQ(b.nic->window_of(there.get()).length, 65536U);
  fill(a.bytes(kSource, 65536), 3);
  std::memset(b.at(kTarget), 0, 65536);
  ASSERT_EQ(
      Request(IBV_WR_RDMA_WRITE, 1).gather({kIova + 100, 5000, here->lkey}).remote(kIova + 200, there->rkey).post(a),
      0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(b.bytes(kTarget + 200, 5000), 3, 100));
  EXPECT_TRUE(all_are(b.bytes(kTarget, 200), std::byte{0}));
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 2).gather({kIova, 100, here->lkey}).remote(kIova + 200, there->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
  EXPECT_TRUE(matches(a.bytes(kSource, 100), 3, 100));
}

// IBTA C9-88: the key of an empty READ or WRITE is not looked at.
TEST_P(Keys, EmptyAccessNeedsNoKey) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ASSERT_EQ(Request(opcode, 1).remote(0xDEAD, ~b.rkey()).post(a), 0);
    EXPECT_EQ(sent(a).status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(b.post_recv(1, {}), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 2).remote(0, ~b.rkey()).immediate(9).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
  const ibv_wc in = received(b);
  EXPECT_TRUE(succeeded(in, 1, IBV_WC_RECV_RDMA_WITH_IMM));
  EXPECT_EQ(in.byte_len, 0U);
  EXPECT_EQ(in.imm_data, 9U);
}

// A region's first and last byte are in it.
TEST_P(Keys, EdgesOfARegion) {
  const Mr region = b.reg(4096, 4096, kAllAccess);
  ASSERT_TRUE(region);
  import(a, b, region.get());
  for (const std::size_t offset : {std::size_t{4096}, std::size_t{8191}}) {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(kSource, 1)).remote(b.address(offset), region->rkey).post(a),
              0);
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  }
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 2).gather(a.sge(kTarget, 4096)).remote(b.address(4096), region->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
  ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 3)
                .gather(a.sge(kTarget, 8))
                .atomic(b.address(8184), region->rkey, 1)
                .post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 3, IBV_WC_FETCH_ADD));
}

// Each right alone is enough for its opcode.
TEST_P(Keys, OneRightIsEnough) {
  const Mr readable = b.reg(0, 4096, IBV_ACCESS_REMOTE_READ);
  const Mr writable = b.reg(4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  const Mr atomic = b.reg(8192, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  ASSERT_TRUE(readable && writable && atomic);
  for (const Mr* region : {&readable, &writable, &atomic}) import(a, b, region->get());
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 1).gather(a.sge(kTarget, 64)).remote(b.address(0), readable->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_READ));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(kSource, 64)).remote(b.address(4096), writable->rkey).post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
  ASSERT_EQ(Request(IBV_WR_ATOMIC_CMP_AND_SWP, 3)
                .gather(a.sge(kTarget, 8))
                .atomic(b.address(8192), atomic->rkey, 0, 1)
                .post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 3, IBV_WC_COMP_SWAP));
}

// A region that is read only serves as the source of SEND and WRITE.
TEST_P(Keys, SourcesNeedNoLocalWrite) {
  const Mr source = a.reg(kSource, 4096, 0);
  ASSERT_TRUE(source);
  ASSERT_EQ(b.post_recv(1, b.sge(kTarget, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather({a.address(kSource), 64, source->lkey}).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather({a.address(kSource), 64, source->lkey}).remote(b, kTarget).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
}

}  // namespace
}  // namespace verbena::nic::conformance
