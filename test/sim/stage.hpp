// Where a program runs: two NICs of any kind, both ends in this thread.
#pragma once

#include "program.hpp"

#include "host/arena.hpp"
#include "nic/nic.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace verbena::sim {

/// What a queue told, in its order. By side, pair and "sends" or "receives".
using QueueName = std::tuple<std::uint32_t, std::uint32_t, bool>;
struct Outcome {
  std::map<QueueName, std::vector<std::string>> told;
  std::vector<std::map<QueueName, std::size_t>> counts;  ///< After each phase.
  std::vector<std::uint64_t> failed;                     ///< Requests and receives that did not succeed.
  std::vector<std::uint64_t> refused;                    ///< Of these, those that a responder has refused.
  std::array<std::vector<std::byte>, 2> memory;
};

class Stage {
 public:
  /// Polls, through `collect`, until all is over that belongs to a phase, whose number it is given.
  using Settle = std::function<void(Stage&, std::size_t phase)>;

  Stage(nic::Nic& first, nic::Nic& second, const Program& program);

  /// The whole program. Fails the test where an object cannot be made.
  Outcome run(const Settle& settle);
  /// Polls every queue until it is empty. Whether anything came.
  bool collect();
  [[nodiscard]] const Outcome& outcome() const noexcept { return outcome_; }
  [[nodiscard]] std::map<QueueName, std::size_t> counts() const;

 private:
  struct End {
    nic::Qp qp;
    nic::Mw window;
    std::uint32_t first_key = 0;  ///< The window's, of which the variants are counted.
  };
  struct Side {
    nic::Nic* nic = nullptr;
    host::Arena arena;
    std::uint64_t memory_id = 0;
    nic::Pd pd;
    nic::Pd other_pd;
    nic::Mr whole;
    nic::Mr foreign;    ///< Of the other protection domain.
    nic::Mr read_only;  ///< To peers; and for the local side one without any right.
    nic::Mr local_read_only;
    nic::Cq sends;
    nic::Cq receives;
    nic::Srq shared;
    std::vector<End> ends;
  };

  void set_up(Side& side, nic::Nic& nic);
  void add_end(Side& side, std::uint32_t number, std::uint32_t pair);
  void connect();
  void post(const PostedReceive& receive);
  void post(const Operation& operation);
  void fill_in(const Operation& operation, ibv_send_wr& wr) const;
  [[nodiscard]] std::vector<ibv_sge> segments(const Side& side, const std::vector<Range>& local, LocalKey key) const;
  [[nodiscard]] std::uint32_t remote_key(const Operation& operation) const;
  [[nodiscard]] static std::uint32_t window_key(const End& end, std::uint32_t variant) noexcept;
  void take(std::uint32_t side, bool is_send, const ibv_wc& wc);
  void take_send(const Operation& operation, const ibv_wc& wc, std::string& told);
  void take_receive(std::uint32_t side, std::uint32_t pair, const ibv_wc& wc, std::string& told);
  void to_error();
  void close(Side& side);
  [[nodiscard]] ibv_mw_bind_info bind_info(const Operation& operation) const;

  const Program& program_;
  std::array<Side, 2> sides_;
  std::map<std::uint64_t, const Operation*> operations_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> pair_of_;  ///< By side and queue pair number.
  Outcome outcome_;
};

/// Bytes that the specification leaves open after what has failed.
[[nodiscard]] std::vector<std::pair<std::uint32_t, Range>> open_ranges(const Program& program, const Outcome& outcome);

}  // namespace verbena::sim
