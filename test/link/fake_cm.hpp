// A librdmacm without a kernel: ids of one process connect to each other, every object is counted, any call can be made
// to fail, and events can be made by the test.
#pragma once

#include "link/cm/library.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace verbena::link::cm {

/// One a process at a time: the table's functions have no other way to find it.
class FakeCm {
 public:
  FakeCm();
  ~FakeCm();
  FakeCm(const FakeCm&) = delete;
  FakeCm& operator=(const FakeCm&) = delete;
  [[nodiscard]] const CmLibrary& table() const noexcept { return table_; }

  std::string device = "fake_0";                 ///< That every address is on.
  std::optional<rdma_cm_event_type> at_resolve;  ///< Comes instead of ADDR_RESOLVED.
  int at_resolve_status = 0;
  bool is_silent = false;    ///< Requests reach nobody, and nothing tells.
  bool loses_ready = false;  ///< A client's last message, which `establish` sends, reaches nobody.
  bool spoils_data = false;  ///< Private data of requests arrives with another version.
  int fail_at = 0;           ///< The call, from 1, that fails.
  int fail_errno = EIO;
  int calls = 0;

  /// Channels, ids, and events that were not given back.
  [[nodiscard]] std::size_t live() const;
  /// Of the id that asked for it last, what init_qp_attr was asked for.
  std::vector<ibv_qp_state> states_asked;

 private:
  struct Table;
  friend struct Table;
  struct Id;
  struct Channel;
  struct Event;
  void post(Id& id, rdma_cm_event_type type, int status = 0, const rdma_conn_param* param = nullptr,
            Id* listener = nullptr);
  [[nodiscard]] bool fails();
  void part(Id& id);

  mutable std::mutex mutex_;
  std::condition_variable acknowledged_;  ///< An event was.
  CmLibrary table_;
  ibv_device device_{};
  ibv_context context_{};
  std::set<std::unique_ptr<Channel>> channels_;
  std::map<rdma_cm_id*, std::unique_ptr<Id>> ids_;
  std::map<rdma_cm_event*, std::unique_ptr<Event>> taken_;
  std::map<std::uint16_t, Id*> listeners_;
  std::uint16_t next_port_ = 1000;
};

}  // namespace verbena::link::cm
