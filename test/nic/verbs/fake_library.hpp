// A libibverbs without devices: every object is counted, any call can be made to fail, and events are made by the test.
#pragma once

#include "nic/verbs/library.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace verbena::nic::verbs {

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  std::uint16_t lid = 0;
  std::uint8_t flags = 0;
  std::vector<ibv_gid_entry> gids;  ///< Their port_num is set by the fake.
};

struct FakeDevice {
  ibv_device base{};
  ibv_device_attr attr{};
  std::vector<FakePort> ports;
  int open_errno = 0;  ///< Why it cannot be opened.
  FakeDevice(const char* name, std::vector<FakePort> with_ports);
};

/// One a process at a time: the table's functions have no other way to find it.
class FakeLibrary {
 public:
  FakeLibrary();
  ~FakeLibrary();
  FakeLibrary(const FakeLibrary&) = delete;
  FakeLibrary& operator=(const FakeLibrary&) = delete;
  [[nodiscard]] const VerbsLibrary& table() const noexcept { return table_; }

  // What the device is like.
  std::vector<std::unique_ptr<FakeDevice>> devices;
  int list_errno = 0;
  bool has_thread_domains = false;
  std::uint32_t max_inline = 220;
  bool refuses_optional_access = false;
  std::size_t max_locked = ~std::size_t{0};  ///< Registering more is ENOMEM.

  // Failing calls: those that make or change something, and those that release, are counted apart, from 1.
  int fail_acquire = 0;
  int fail_release = 0;
  int fail_errno = EIO;
  int acquires = 0;
  int releases = 0;

  // What there is.
  [[nodiscard]] std::size_t live() const;
  [[nodiscard]] std::size_t live(const std::string& kind) const;

  // What the NIC asked for last.
  ibv_qp_attr last_modify{};
  int last_modify_mask = 0;
  unsigned last_access = 0;
  ibv_pd* last_qp_domain = nullptr;

  // Events.
  void async(const ibv_async_event& event);
  void remove_device();  ///< From now on the event descriptor is readable and reading fails.
  void complete(ibv_cq* cq);
  void break_channel(ibv_comp_channel* channel);
  void make_spurious(ibv_comp_channel* channel);  ///< Readable, and yet there is nothing.
  [[nodiscard]] int unacknowledged() const;

 private:
  struct Table;
  friend struct Table;
  struct Live {
    std::string kind;
    std::shared_ptr<void> object;
  };
  template <class T>
  T* make(const char* kind, std::shared_ptr<T> object);
  [[nodiscard]] bool fails(int& counter, int at);
  int release(void* object);

  mutable std::mutex mutex_;
  std::map<void*, Live> live_;
  struct {
    std::vector<ibv_async_event> events;
    int unacknowledged = 0;
    bool is_removed = false;
    int fd = -1;
  } async_;  ///< Of the device.
  std::map<const void*, std::vector<ibv_cq*>> completions_;
  std::set<const void*> broken_;
  int unacknowledged_cq_ = 0;
  std::uint32_t next_number_ = 100;
  std::vector<ibv_device*> pointers_;
  VerbsLibrary table_{};
};

/// An entry of a GID table: IPv4-mapped 10.0.0.`last`, RoCE v2, over the loopback interface.
[[nodiscard]] ibv_gid_entry ipv4_gid(std::uint32_t index, std::uint8_t last);

}  // namespace verbena::nic::verbs
