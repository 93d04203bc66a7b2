// The receive side of a queue pair: executes the peer's messages in their order, and answers in that order
// (IBTA 9.5, 9.7.4 to 9.7.8).
#pragma once

#include "wire.hpp"

#include "nic/nic.hpp"

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::sim {

struct Receive {
  std::uint64_t wr_id = 0;
  std::vector<ibv_sge> sges;
};

class Responder {
 public:
  explicit Responder(SimQp& qp) noexcept : qp_(qp) {}

  [[nodiscard]] bool is_full() const noexcept;
  void post(const ibv_recv_wr& wr);
  void retire() noexcept { ++retired_; }
  /// Puts a receive whose completion was taken back behind the others.
  void post_again(const Receive& receive);

  void start(std::uint32_t first_number) noexcept { expected_ = answered_ = number_of(first_number); }
  void reset() noexcept;
  /// In error: completes the receives that are left as flushed. A shared queue keeps its own.
  void flush();
  void on_message(std::shared_ptr<const Message> message);
  /// A SEND that reaches its receive in one step, past the network. False: nothing has happened, because something is
  /// ahead of it, or no receive has room.
  [[nodiscard]] bool take_now(std::span<const std::byte> data);

 private:
  using Shared = std::shared_ptr<const Message>;
  void answer_again(const Message& message);
  void next();
  void execute(const Shared& message);
  void execute_send(const Shared& message);
  void execute_write(const Shared& message);
  void execute_read(const Shared& message);
  void execute_atomic(const Shared& message);
  void arrived(const Shared& message);
  void written(const Shared& message);
  void done(const Message& message);
  /// Runs `deliver` for each piece, in any order, and then `end`; `deliver` says whether the piece could be delivered,
  /// and if not, has done what is then to be done.
  void in_pieces(std::uint64_t address, std::uint64_t length, std::function<bool(const Piece&)> deliver,
                 std::function<void()> end);

  /// Why the access is refused, or IBV_WC_SUCCESS.
  [[nodiscard]] ibv_wc_status check_access(const Message& message, std::uint32_t needed) const noexcept;
  /// Of a message that cannot be executed: lost on an unreliable connection; else both queue pairs fail.
  void refuse(const Shared& message, ibv_wc_status status, Status why);
  void not_ready(const Shared& message);
  [[nodiscard]] bool take_receive();
  void complete_receive(const Message& message);
  void fail_receive(ibv_wc_status status);
  void fail_receive_of(const Shared& message, ibv_wc_status here, ibv_wc_status there);

  /// A place among the answers, which go out in the order of the messages.
  struct Place {
    std::shared_ptr<Answer> answer;
    bool is_ready = false;
  };
  void answer(const Message& message, Answer::Kind kind);
  void send_ready_answers();

  SimQp& qp_;
  std::deque<Receive> receives_;
  std::uint64_t posted_ = 0;
  std::uint64_t retired_ = 0;
  std::optional<Receive> current_;  ///< Taken by the message that is being executed.
  bool is_flushing_ = false;
  std::uint64_t expected_ = 0;  ///< Of the next new message.
  std::uint64_t answered_ = 0;  ///< All before it have their answers.
  std::deque<Shared> inbox_;
  bool is_busy_ = false;     ///< With a message that holds up the next.
  std::uint32_t reads_ = 0;  ///< READs whose bytes are being fetched.
  std::deque<std::shared_ptr<Place>> places_;
  std::map<std::uint64_t, std::uint64_t> atomics_;  ///< Results by number, for repeated requests (IBTA 9.7.5.2.3).
};

}  // namespace verbena::sim
