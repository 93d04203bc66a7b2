// Authenticates the bytes of handshakes: attests this process's to its peers, and asks the peers about theirs.
#include "nic/soft/path.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace verbena::nic::soft {

namespace {

[[nodiscard]] Result<void> check_bytes(const char* call, std::span<const std::byte> sent) {
  if (!sent.empty() && sent.size() <= Nic::kMaxAttestedBytes) return {};
  return fail(Status::kTooLong, call, 0, "{} bytes were sent; 1 to {} can be attested", sent.size(),
              Nic::kMaxAttestedBytes);
}

}  // namespace

Result<std::uint64_t> SoftNic::attest(std::span<const std::byte> sent) {
  VERBENA_TRY(check_bytes("attest", sent));
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = attested_.next++;
  attested_.by_number.emplace(number, Attested{.bytes = {sent.begin(), sent.end()}});
  return number;
}

void SoftNic::retract(std::uint64_t attestation) noexcept {
  const std::lock_guard lock(mutex_);
  attested_.by_number.erase(attestation);
}

/// Confirms each attestation only once, so that an eavesdropper on a handshake cannot lead a second server to its
/// client.
bool SoftNic::confirm(std::span<const std::byte> sent) noexcept {
  const auto found = std::ranges::find_if(attested_.by_number, [&](const auto& entry) {
    return !entry.second.is_confirmed && std::ranges::equal(entry.second.bytes, sent);
  });
  if (found == attested_.by_number.end()) return false;
  found->second.is_confirmed = true;
  return true;
}

/// Holds a use of the peer, and the question, which it sends once the peer is known.
class SoftNic::PeerInquiry final : public Inquiry {
 public:
  PeerInquiry(SoftNic& nic, std::span<const std::byte> sent) : nic_(nic), ask_(std::make_shared<Ask>()) {
    ask_->request.type = RequestType::kConfirm;
    ask_->request.my_gid = nic.gid_;
    ask_->request.attested_bytes = static_cast<std::uint32_t>(sent.size());
    ask_->attested.assign(sent.begin(), sent.end());
  }
  ~PeerInquiry() override {
    if (peer_ == nullptr) return;
    const Lock lock(nic_);
    nic_.drop_ask(*peer_, *ask_);
    nic_.release_peer(peer_);
  }

  /// Call it once, under the NIC's mutex.
  [[nodiscard]] Result<void> find(const ibv_gid& gid) {
    VERBENA_ASSIGN(peer_, nic_.find_peer(gid));
    ask_if_known();
    return {};
  }

  Result<PeerProcess> answer(Deadline deadline) override {
    std::unique_lock lock(nic_.mutex_);
    for (;;) {
      ask_if_known();
      if (ask_->is_over) break;
      if (peer_->dead.load()) return std::unexpected(peer_->failure);
      if (is_poll(deadline)) return not_yet("inquire");
      if (!nic_.await_answer(lock, deadline)) return no_answer(*peer_);
    }
    if (ask_->failure) return std::unexpected(*ask_->failure);
    if (ask_->reply.answer == Answer::kOk) return peer_->process;
    return fail(Status::kNotAllowed, "inquire", EACCES,
                "the process that the handshake names (pid {}) has not sent it: another program stands between the two",
                peer_->process.pid);
  }

  std::optional<uid_t> uid() const override {
    const std::lock_guard lock(nic_.mutex_);
    if (peer_->state == Peer::State::kConnecting) return std::nullopt;
    return peer_->process.uid;
  }

 private:
  void ask_if_known() {
    if (is_asked_ || peer_->dead.load() || peer_->state != Peer::State::kKnown) return;
    is_asked_ = true;
    nic_.ask(*peer_, ask_);
  }

  SoftNic& nic_;
  Peer* peer_ = nullptr;
  const std::shared_ptr<Ask> ask_;
  bool is_asked_ = false;
};

Result<std::unique_ptr<Inquiry>> SoftNic::inquire(const ibv_gid& gid, std::span<const std::byte> sent) {
  VERBENA_TRY(check_bytes("inquire", sent));
  auto inquiry = std::make_unique<PeerInquiry>(*this, sent);
  {
    const std::lock_guard lock(mutex_);
    VERBENA_TRY(inquiry->find(gid));
  }
  return inquiry;
}

}  // namespace verbena::nic::soft
