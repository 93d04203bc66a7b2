#include "node/device.hpp"

#include "base/simulation.hpp"
#include "base/threads.hpp"
#include "node/shard.hpp"

#include <algorithm>
#include <vector>

namespace verbena::node {

namespace {

/// The devices of this process.
struct Devices {
  struct Entry {
    const link::SharedNic* nic = nullptr;
    std::weak_ptr<Device> device;
  };
  Mutex mutex;
  std::vector<Entry> entries;
};
Devices& devices() {
  return simulation::once_a_process([] { return new Devices; });
}

/// Clients with handlers that one thread drives, at most.
constexpr unsigned kMostClients = 1024;

}  // namespace

Result<std::shared_ptr<Device>> Device::of(const std::shared_ptr<link::SharedNic>& nic) {
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [](const Devices::Entry& entry) { return entry.device.expired(); });
  for (const Devices::Entry& entry : all.entries)
    if (entry.nic == nic.get())
      if (auto device = entry.device.lock()) return device;
  std::shared_ptr<Device> device(new Device(nic));
  VERBENA_ASSIGN(ibv_pd * pd, nic->nic().alloc_pd());
  device->pd_ = nic::Pd(nic->nic(), pd);
  device->buffers_.emplace(nic->nic(), pd);
  device->registrations_.emplace(nic->nic(), pd);
  all.entries.push_back({.nic = nic.get(), .device = device});
  return device;
}

Result<Acceptor*> Device::acceptor() {
  const std::lock_guard lock(mutex_);
  if (!acceptor_) {
    VERBENA_ASSIGN(acceptor_, Acceptor::start(nic()));
  }
  return acceptor_.get();
}

Result<std::shared_ptr<SessionShard>> Device::client_shard(const std::shared_ptr<Device>& device) {
  const std::lock_guard lock(device->mutex_);
  if (auto shard = device->client_shard_.lock(); shard && shard->is_running() && shard->loop().has_room()) return shard;
  const unsigned most = std::min(kMostClients, SessionShard::most_connections(device->nic()));
  VERBENA_ASSIGN(auto shard, SessionShard::open(device, {.max_connections = most}));
  VERBENA_TRY(shard->start());
  device->client_shard_ = shard;
  return shard;
}

}  // namespace verbena::node
