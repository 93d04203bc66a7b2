// NICs that this process has open: each is opened once, whatever the number of its users.
#pragma once

#include "base/fork.hpp"
#include "base/threads.hpp"
#include "link/cm/cm.hpp"
#include "link/socket_watcher.hpp"
#include "nic/nic.hpp"
#include "nic/verbs.hpp"

#include <verbena/error.hpp>

#include <sys/types.h>

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace verbena::link {

/// By what NICs are opened: the libraries of this build, or a test's.
struct NicMakers {
  std::function<Result<std::unique_ptr<nic::Nic>>(const nic::SoftOptions&)> open_soft;
  std::function<Result<std::unique_ptr<nic::Nic>>(const nic::VerbsOptions&)> open_verbs;
  std::function<Result<std::unique_ptr<cm::Manager>>(nic::Nic&)> start_cm;
};

/// A NIC that is open, and what makes connections over it. Immovable. Outlives listeners, handshakes and lifelines; its
/// last user's going closes it. \thread any
class SharedNic {
 public:
  using StartCm = std::function<Result<std::unique_ptr<cm::Manager>>(nic::Nic&)>;
  SharedNic(std::unique_ptr<nic::Nic> nic, StartCm start_cm) noexcept
      : nic_(std::move(nic)), start_cm_(std::move(start_cm)) {}
  SharedNic(const SharedNic&) = delete;
  SharedNic& operator=(const SharedNic&) = delete;

  [[nodiscard]] nic::Nic& nic() const noexcept { return *nic_; }
  /// Of an RDMA device. Started by the first call. Errors: those of cm::start.
  [[nodiscard]] Result<cm::Manager*> manager();
  /// For sockets of connections. Started by the first call. Errors: kLimit.
  [[nodiscard]] Result<SocketWatcher*> watcher();

 private:
  const InUse in_use_;
  const std::unique_ptr<nic::Nic> nic_;
  const StartCm start_cm_;
  Mutex mutex_;  ///< Of what follows.
  std::unique_ptr<cm::Manager> manager_;
  std::unique_ptr<SocketWatcher> watcher_;
};

/// A device that is open, and what was chosen of its GIDs for who asked.
struct SharedDevice {
  std::shared_ptr<SharedNic> nic;
  nic::verbs::GidChoice gid;
};

/// Finds the NICs that are open. \thread any
class NicRegistry {
 public:
  explicit NicRegistry(NicMakers makers) : makers_(std::move(makers)) {}
  NicRegistry(const NicRegistry&) = delete;
  NicRegistry& operator=(const NicRegistry&) = delete;
  /// Of the NICs of this build.
  [[nodiscard]] static NicRegistry& of_process();

  /// The software NIC for peers of these users besides this process's own, in any order. Other users, another NIC:
  /// memory that is granted to any allowed peer (nic::Grant::To::kAnyPeer) must not reach users that another part of
  /// the process has allowed. Errors: those of nic::open_soft.
  [[nodiscard]] Result<std::shared_ptr<SharedNic>> soft(std::span<const uid_t> allowed_uids);
  /// An RDMA device. What the options leave open is chosen when nobody has it open by these options; who leaves the
  /// same open joins that choice. A device that has failed since is not handed out: its users keep it, and others open
  /// it again. Errors: those of nic::open_verbs.
  [[nodiscard]] Result<SharedDevice> device(const nic::VerbsOptions& options);

 private:
  /// What was asked for; or what a device became by it, which is the same device however it was asked for.
  struct Key {
    nic::Kind kind = nic::Kind::kSoft;
    std::vector<uid_t> allowed_uids{};  ///< Sorted, each once.
    std::string chaos{};                ///< What the environment asks of the software NIC.
    std::string device{};
    std::uint8_t port = 0;
    std::optional<std::uint32_t> gid_index{};
    std::optional<std::array<std::uint8_t, 16>> gid{};
    /// Only of what a device became. On InfiniBand the row makes a difference: a global route is for one asked for.
    std::optional<bool> has_grh{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  /// Its mutex is held while the NIC is opened: who asks for the same one waits, and nobody else does. Slots of what
  /// was asked for are locked before those of what devices became.
  struct Slot {
    Mutex mutex;
    std::weak_ptr<SharedNic> nic;
    nic::verbs::GidChoice gid{};  ///< Of a device, and of those who asked for it by the slot's key.
  };
  [[nodiscard]] static Key key_of(const nic::VerbsOptions& options);
  [[nodiscard]] static Key key_of(const nic::DeviceFacts& facts, const nic::Nic& nic);
  [[nodiscard]] std::shared_ptr<Slot> slot_of(const Key& key);
  [[nodiscard]] std::shared_ptr<SharedNic> share(std::unique_ptr<nic::Nic> nic) const;

  const NicMakers makers_;
  Mutex mutex_;  ///< Of the table only: held for no call that can take its time.
  std::map<Key, std::shared_ptr<Slot>> slots_;
};

}  // namespace verbena::link
