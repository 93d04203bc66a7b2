// A queue pair of the typed API: the engine's, with a loop of its own, and who has what memory while it works.
#pragma once

#include "api/cxx/started.hpp"
#include "engine/loop.hpp"
#include "engine/queue_pair.hpp"
#include "link/link.hpp"
#include "node/node.hpp"

#include <verbena/queue_pair.hpp>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::typed::detail {

/// \thread as StartedOperations
class QueuePairState final : public StartedOperations,
                             public coroutine::detail::Driven,
                             private engine::QueuePair::Owner {
 public:
  /// Largest depth of a queue: slots of both fit into the ids of work requests.
  static constexpr std::uint32_t kMaxDepth = 16000;

  // Bring-up. \thread setup
  /// In INIT. The settings are checked.
  [[nodiscard]] static Result<QueuePairState*> make(const QueuePairSettings& settings);
  [[nodiscard]] QueuePairEndpoint describe() const noexcept;
  [[nodiscard]] Result<void> meet(const QueuePairEndpoint& peer);
  [[nodiscard]] Result<void> connect(Deadline deadline);
  [[nodiscard]] Result<void> import(const rdma::Window& window, const std::optional<Deadline>& deadline);
  /// Don't touch this object afterwards.
  void close() noexcept;

  [[nodiscard]] Started start(const Request& request) noexcept;
  [[nodiscard]] Started start_receive(const char* call, std::span<const Piece> pieces) noexcept;
  [[nodiscard]] Status post_unsignaled(const Request& request) noexcept;
  /// A list that `make_request` filled.
  [[nodiscard]] Started start_list(const char* call, std::span<ibv_send_wr> list) noexcept;
  /// Checks a request, and fills `wr` and `sges`, which has a place for each piece. kOk or why it is refused.
  [[nodiscard]] Status make_request(const Request& request, ibv_send_wr& wr, std::span<ibv_sge> sges) noexcept;

  [[nodiscard]] Deadline default_deadline() const noexcept override { return Deadline::after(settings_.wait_timeout); }
  using StartedOperations::settle;

  // For coroutines. \thread their loop's
  [[nodiscard]] coroutine::detail::Driven* driven() noexcept override { return this; }
  void look() noexcept override { take_in(Deadline::now()); }
  void sleep(Deadline deadline) noexcept override { take_in(deadline); }
  void wake() noexcept override { loop_->wake(); }

  [[nodiscard]] Status failure() const noexcept { return pair_ ? pair_->reason() : Status::kClosed; }
  [[nodiscard]] const QueuePairSettings& settings() const noexcept { return settings_; }
  [[nodiscard]] std::size_t max_inline() const noexcept { return max_inline_; }
  [[nodiscard]] std::size_t room() const noexcept { return pair_ ? pair_->room() : 0; }
  /// For tests.
  [[nodiscard]] ibv_qp* queue_pair() const noexcept { return pair_ ? pair_->get() : nullptr; }

 private:
  explicit QueuePairState(const QueuePairSettings& settings);
  ~QueuePairState() override = default;
  [[nodiscard]] Result<void> open();
  [[nodiscard]] link::BringUp how() const noexcept;
  [[nodiscard]] nic::Nic& nic() const noexcept { return settings_.node->device().nic(); }

  // StartedOperations
  void collect_now() noexcept override;
  Status collect_until(std::uint32_t slot, Deadline deadline) noexcept override;
  /// Takes completions in, unless another thread does; waits for one until the deadline, or `wake`.
  void take_in(Deadline deadline) noexcept;
  // engine::QueuePair::Owner
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void on_attached() noexcept override {}
  void on_drained() noexcept override;

  [[nodiscard]] Status check_usable(const char* call) const noexcept;
  [[nodiscard]] Status check_pieces(const char* call, std::span<const Piece> pieces,
                                    std::uint64_t& bytes) const noexcept;
  [[nodiscard]] Status check_target(const Request& request, std::uint64_t bytes) noexcept;
  /// Makes room for `count` requests in the send queue, of what is complete.
  [[nodiscard]] Status make_room(const char* call, std::size_t count) noexcept;
  void on_failed(const ibv_wc& completion) noexcept;
  void on_receive(const ibv_wc& completion) noexcept;
  void on_sent(std::uint64_t id, Status status) noexcept;
  void finish(std::uint64_t id, End end) noexcept;
  /// The half of a work request's id that tells its operation.
  [[nodiscard]] static std::uint32_t tag_of(std::uint64_t cookie) noexcept {
    return engine::wr::tag(static_cast<std::uint32_t>(cookie), static_cast<std::uint16_t>(cookie >> 32));
  }

  const QueuePairSettings settings_;
  std::unique_ptr<engine::CompletionLoop> loop_;
  std::optional<engine::QueuePair> pair_;  ///< None once it is closed.
  link::Endpoint local_;
  link::Endpoint remote_;
  std::uint16_t peer_number_ = 0;  ///< The peer's NIC.
  bool is_up_ = false;
  std::uint32_t max_inline_ = 0;
  std::uint32_t max_message_ = 0;
  std::uint32_t receives_ = 0;  ///< Posted, and not complete.
  engine::WindowTable windows_;
  std::vector<ibv_sge> sges_;  ///< For the request that is being posted.
  /// For each operation of the send queue: its last request's position, and how one before it failed.
  struct Sent {
    std::uint32_t last = 0;
    Status early = Status::kOk;
  };
  std::vector<Sent> sent_;
  std::vector<std::uint64_t> words_;  ///< Where atomics put the value before, by slot.
  nic::Mr words_mr_;
};

}  // namespace verbena::typed::detail
