#include "link/shared_nic.hpp"

#include "base/error.hpp"
#include "base/simulation.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace verbena::link {

namespace {

/// Whether a NIC still carries out commands. The kernel fails every command on a device that was removed or has a fatal
/// error (EIO), so this tries a cheap one. The software NIC cannot fail.
bool works(nic::Nic& nic) {
  if (nic::facts_of(nic) == nullptr) return true;
  const auto pd = nic.alloc_pd();
  if (!pd) return pd.error().status() != Status::kDevice;
  const auto released = nic.dealloc_pd(*pd);
  return released || released.error().status() != Status::kDevice;
}

/// The environment variables that nic::open_soft reads: another value would make another NIC.
std::string chaos_of_environment() {
  const auto value_of = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  return value_of("VERBENA_CHAOS") + '\n' + value_of("VERBENA_CHAOS_SEED");
}

std::shared_ptr<SharedNic> working(const std::weak_ptr<SharedNic>& nic) {
  auto found = nic.lock();
  if (found && !works(found->nic())) found.reset();
  return found;
}

}  // namespace

// --- a NIC

Result<cm::Manager*> SharedNic::manager() {
  const std::lock_guard lock(mutex_);
  if (!manager_) {
    VERBENA_ASSIGN(manager_, start_cm_(*nic_));
  }
  return manager_.get();
}

Result<SocketWatcher*> SharedNic::watcher() {
  const std::lock_guard lock(mutex_);
  if (!watcher_) {
    VERBENA_ASSIGN(watcher_, SocketWatcher::start());
  }
  return watcher_.get();
}

// --- the registry

NicRegistry& NicRegistry::of_process() {
  return simulation::once_a_process([] {
    return new NicRegistry({.open_soft = nic::open_soft, .open_verbs = nic::open_verbs, .start_cm = cm::start});
  });
}

NicRegistry::Key NicRegistry::key_of(const nic::VerbsOptions& options) {
  Key key{.kind = nic::Kind::kVerbs, .device = options.device, .port = options.port, .gid_index = options.gid.index};
  if (!options.gid.index && options.gid.address) key.gid = std::to_array(options.gid.address->raw);
  return key;
}

NicRegistry::Key NicRegistry::key_of(const nic::DeviceFacts& facts, const nic::Nic& nic) {
  return {.kind = nic::Kind::kVerbs,
          .device = nic.name(),
          .port = facts.port,
          .gid_index = facts.gid.index,
          .has_grh = facts.gid.grh};
}

std::shared_ptr<NicRegistry::Slot> NicRegistry::slot_of(const Key& key) {
  const std::lock_guard lock(mutex_);
  std::erase_if(slots_, [](const auto& entry) {
    // If so, no other thread can get it meanwhile, and the last one has released its mutex.
    if (entry.second.use_count() != 1) return false;
    const std::unique_lock own(entry.second->mutex, std::try_to_lock);
    return own.owns_lock() && entry.second->nic.expired();
  });
  std::shared_ptr<Slot>& slot = slots_[key];
  if (!slot) slot = std::make_shared<Slot>();
  return slot;
}

std::shared_ptr<SharedNic> NicRegistry::share(std::unique_ptr<nic::Nic> nic) const {
  return std::make_shared<SharedNic>(std::move(nic), makers_.start_cm);
}

Result<std::shared_ptr<SharedNic>> NicRegistry::soft(std::span<const uid_t> allowed_uids) {
  Key key{.kind = nic::Kind::kSoft,
          .allowed_uids = {allowed_uids.begin(), allowed_uids.end()},
          .chaos = chaos_of_environment()};
  std::ranges::sort(key.allowed_uids);
  const auto repeated = std::ranges::unique(key.allowed_uids);
  key.allowed_uids.erase(repeated.begin(), repeated.end());
  const auto slot = slot_of(key);
  const std::lock_guard lock(slot->mutex);
  if (auto found = working(slot->nic)) return found;
  VERBENA_ASSIGN(auto opened, makers_.open_soft({.allowed_uids = key.allowed_uids}));
  auto shared = share(std::move(opened));
  slot->nic = shared;
  return shared;
}

Result<SharedDevice> NicRegistry::device(const nic::VerbsOptions& options) {
  const auto slot = slot_of(key_of(options));
  const std::lock_guard lock(slot->mutex);
  if (auto found = working(slot->nic)) return SharedDevice{.nic = std::move(found), .gid = slot->gid};
  VERBENA_ASSIGN(auto opened, makers_.open_verbs(options));
  const nic::DeviceFacts facts = *nic::facts_of(*opened);
  const auto whole = slot_of(key_of(facts, *opened));
  const std::lock_guard whole_lock(whole->mutex);
  auto shared = working(whole->nic);
  if (!shared) shared = share(std::move(opened));
  whole->nic = slot->nic = shared;
  slot->gid = facts.gid;
  return SharedDevice{.nic = std::move(shared), .gid = facts.gid};
}

}  // namespace verbena::link
