// Who has sent a handshake's bytes: NICs ask each other, and answer nothing but the truth.
#include "nic/nic.hpp"
#include "raw_peer.hpp"

#include "result.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace verbena::nic::soft {
namespace {

using Bytes = std::vector<std::byte>;

Deadline patience() { return Deadline::after(std::chrono::seconds{20}); }

class Attestations : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(mine_->objects(), Nic::Objects{});
    EXPECT_EQ(other_->objects(), Nic::Objects{});
  }
  [[nodiscard]] Result<PeerProcess> ask(Nic& asker, const ibv_gid& gid, const Bytes& sent) {
    VERBENA_ASSIGN(const auto inquiry, asker.inquire(gid, sent));
    return inquiry->answer(patience());
  }
  [[nodiscard]] Result<PeerProcess> ask(const Bytes& sent) { return ask(*other_, mine_->gid(), sent); }
  [[nodiscard]] Attestation attest(const Bytes& sent) { return Attestation::make(*mine_, sent).value(); }

  std::unique_ptr<Nic> mine_ = open_soft({}).value();
  std::unique_ptr<Nic> other_ = open_soft({}).value();
  const Bytes sent_ = Bytes(600, std::byte{7});
};

TEST_F(Attestations, AreConfirmedByTheProcessAndOnce) {
  const Attestation attestation = attest(sent_);
  const auto process = ask(sent_);
  ASSERT_OK(process);
  EXPECT_EQ(process->pid, ::getpid());
  EXPECT_EQ(process->uid, ::geteuid());
  EXPECT_STATUS(ask(sent_), Status::kNotAllowed);
}

TEST_F(Attestations, NothingElseIsConfirmed) {
  const Attestation attestation = attest(sent_);
  EXPECT_STATUS(ask(Bytes(sent_.size() - 1, std::byte{7})), Status::kNotAllowed);
  EXPECT_STATUS(ask(Bytes(sent_.size() + 1, std::byte{7})), Status::kNotAllowed);
  for (const std::size_t at : {std::size_t{0}, sent_.size() / 2, sent_.size() - 1}) {
    Bytes changed = sent_;
    changed[at] ^= std::byte{1};
    EXPECT_STATUS(ask(changed), Status::kNotAllowed) << at;
  }
  // What this process says is not what the other one has said: the same process here, and another NIC.
  EXPECT_STATUS(ask(*mine_, other_->gid(), sent_), Status::kNotAllowed);
  EXPECT_OK(ask(sent_));
}

TEST_F(Attestations, EndWithTheirObject) {
  { const Attestation attestation = attest(sent_); }
  EXPECT_STATUS(ask(sent_), Status::kNotAllowed);
  Attestation first = attest(sent_);
  Attestation second = attest(sent_);
  Attestation moved = std::move(first);
  second = {};
  EXPECT_OK(ask(sent_));
  EXPECT_STATUS(ask(sent_), Status::kNotAllowed);
  moved = attest(sent_);
  EXPECT_OK(ask(sent_));
}

// A peer that names this very process's GID is this process only if it attests so.
TEST_F(Attestations, TheOwnGidIsAskedToo) {
  EXPECT_STATUS(ask(*mine_, mine_->gid(), sent_), Status::kNotAllowed);
  const Attestation attestation = attest(sent_);
  EXPECT_OK(ask(*mine_, mine_->gid(), sent_));
}

TEST_F(Attestations, HaveTheirLimits) {
  const Bytes longest(Nic::kMaxAttestedBytes, std::byte{1});
  const Bytes too_long(Nic::kMaxAttestedBytes + 1, std::byte{1});
  const Attestation attestation = attest(longest);
  EXPECT_OK(ask(longest));
  for (const Bytes& wrong : {Bytes{}, too_long}) {
    EXPECT_STATUS(mine_->attest(wrong), Status::kTooLong);
    EXPECT_STATUS(ask(wrong), Status::kTooLong);
  }
}

TEST_F(Attestations, NobodyHasThatGid) {
  ibv_gid gid = mine_->gid();
  gid.raw[15] ^= 1;
  EXPECT_STATUS(ask(*other_, gid, sent_), Status::kPeerLost);
  gid.raw[0] ^= 1;
  EXPECT_STATUS(ask(*other_, gid, sent_), Status::kOtherHost);
}

/// Conversations of a peer that breaks the rules: it is hung up on, and others are served as ever.
TEST_F(Attestations, LiesAboutTheirLength) {
  const Attestation attestation = attest(sent_);
  struct Lie {
    const char* name;
    RequestType type;
    std::uint32_t said;  ///< Bytes behind the request, as it says
    std::size_t behind;  ///< and as they are.
    bool is_greeted = true;
  };
  const Lie lies[] = {
      {"more than there are", RequestType::kConfirm, 601, 600},
      {"fewer than there are", RequestType::kConfirm, 599, 600},
      {"the most that can be said", RequestType::kConfirm, ~0U, 600},
      {"a sum that wraps around", RequestType::kConfirm, static_cast<std::uint32_t>(-sizeof(Request)), 0},
      {"longer than allowed", RequestType::kConfirm, Nic::kMaxAttestedBytes + 1, Nic::kMaxAttestedBytes + 1},
      {"far longer than allowed", RequestType::kConfirm, 1U << 16, std::size_t{1} << 16},
      {"before the greeting", RequestType::kConfirm, 600, 600, false},
      {"behind a greeting", RequestType::kHello, 600, 600},
      {"behind a request for memory", RequestType::kMemory, 600, 600},
      {"behind a wake", RequestType::kWake, 600, 600},
  };
  for (const Lie& lie : lies) {
    RawClient client;
    Reply reply;
    Fds fds;
    ASSERT_TRUE(client.connect(mine_->gid()));
    if (lie.is_greeted) {
      ASSERT_TRUE(client.hello(other_->gid(), reply, fds));
    }
    Request request;
    request.type = lie.type;
    request.my_gid = other_->gid();
    request.attested_bytes = lie.said;
    Bytes message(sizeof request + lie.behind, std::byte{7});
    std::memcpy(message.data(), &request, sizeof request);
    ASSERT_TRUE(client.send(message.data(), message.size()));
    EXPECT_TRUE(client.hung_up()) << lie.name;
  }
  EXPECT_OK(ask(sent_));
}

}  // namespace
}  // namespace verbena::nic::soft
