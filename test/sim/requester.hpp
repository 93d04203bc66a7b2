// The send side of a queue pair: what is posted goes out in order, is repeated until it is answered, and completes in
// order (IBTA 9.7, 9.9.2 and 10.8.3).
#pragma once

#include "wire.hpp"

#include "nic/nic.hpp"

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace verbena::sim {

struct SendRequest {
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_data;  ///< Taken while posting: the caller's memory is its own again.
  std::uint64_t posted = 0;            ///< Its place in the queue, counted from 1.
  std::uint64_t number = 0;            ///< On the wire.
  std::uint64_t length = 0;
  bool is_arriving = false;  ///< Of a READ or atomic: the answer is here, and on its way into memory.
  bool is_done = false;
  ibv_wc_status failure = IBV_WC_SUCCESS;
};

class Requester {
 public:
  explicit Requester(SimQp& qp) noexcept : qp_(qp) {}

  /// 0, or what ibv_post_send returns for a request that is wrong in itself.
  [[nodiscard]] int check(const ibv_send_wr& wr) const noexcept;
  [[nodiscard]] bool is_full() const noexcept;
  /// All that was posted is complete.
  [[nodiscard]] bool is_idle() const noexcept { return queue_.empty(); }
  void post(const ibv_send_wr& wr);
  /// A completion was polled: everything posted up to it is out of the queue.
  void retire(std::uint64_t posted) noexcept { retired_ = posted; }

  void start(std::uint32_t first_number) noexcept;
  void reset() noexcept;
  /// In error: completes everything that is left as flushed.
  void flush();
  void on_answer(const std::shared_ptr<const Answer>& answer);

 private:
  void pump_later();
  void pump();
  [[nodiscard]] bool may_go(const SendRequest& request) const noexcept;
  /// Binds or invalidates. Neither leaves the NIC.
  void run_here(SendRequest& request);
  /// Puts the next request on the wire, or finds that its local side is wrong.
  void transmit(SendRequest& request);
  [[nodiscard]] std::shared_ptr<Message> message_of(SendRequest& request) const;
  void watch();
  void time_out();
  void wait_for_receive(const Answer& answer);
  void take_data(SendRequest& request, const std::shared_ptr<const Answer>& answer);
  void complete();
  void finish(const SendRequest& request, ibv_wc_status status);
  void made_progress() noexcept;
  [[nodiscard]] SendRequest* find(std::uint64_t number) noexcept;
  [[nodiscard]] bool awaits_answer() const noexcept;

  SimQp& qp_;
  std::deque<SendRequest> queue_;  ///< Posted and not complete.
  std::size_t next_ = 0;           ///< Of the queue: goes out next.
  std::uint64_t next_number_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t retired_ = 0;
  bool is_pumping_ = false;
  bool is_watched_ = false;
  bool waits_for_receive_ = false;
  bool is_flushing_ = false;
  std::uint32_t retries_left_ = 0;
  std::uint32_t rnr_retries_left_ = 0;
  Nanoseconds progress_ = 0;  ///< When an answer last told of something new.
};

}  // namespace verbena::sim
