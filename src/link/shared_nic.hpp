// The open NICs of this process: each is opened once, for any number of users.
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

/// Functions that open NICs: those of this build, or a test's.
struct NicMakers {
  std::function<Result<std::unique_ptr<nic::Nic>>(const nic::SoftOptions&)> open_soft;
  std::function<Result<std::unique_ptr<nic::Nic>>(const nic::VerbsOptions&)> open_verbs;
  std::function<Result<std::unique_ptr<cm::Manager>>(nic::Nic&)> start_cm;
};

/// An open NIC, with the objects that make connections over it. Immovable. It must outlive listeners, handshakes and
/// lifelines; the last user's release closes it. \thread any
class SharedNic {
 public:
  using StartCm = std::function<Result<std::unique_ptr<cm::Manager>>(nic::Nic&)>;
  SharedNic(std::unique_ptr<nic::Nic> nic, StartCm start_cm) noexcept
      : nic_(std::move(nic)), start_cm_(std::move(start_cm)) {}
  SharedNic(const SharedNic&) = delete;
  SharedNic& operator=(const SharedNic&) = delete;

  [[nodiscard]] nic::Nic& nic() const noexcept { return *nic_; }
  /// For an RDMA device. The first call starts it. Errors: those of cm::start.
  [[nodiscard]] Result<cm::Manager*> manager();
  /// For sockets of connections. The first call starts it. Errors: kLimit.
  [[nodiscard]] Result<SocketWatcher*> watcher();

 private:
  const InUse in_use_;
  const std::unique_ptr<nic::Nic> nic_;
  const StartCm start_cm_;
  Mutex mutex_;  ///< Guards the members below.
  std::unique_ptr<cm::Manager> manager_;
  std::unique_ptr<SocketWatcher> watcher_;
};

/// An open device, and the GID chosen for the caller's options.
struct SharedDevice {
  std::shared_ptr<SharedNic> nic;
  nic::verbs::GidChoice gid;
};

/// Finds open NICs, and opens others. \thread any
class NicRegistry {
 public:
  explicit NicRegistry(NicMakers makers) : makers_(std::move(makers)) {}
  NicRegistry(const NicRegistry&) = delete;
  NicRegistry& operator=(const NicRegistry&) = delete;
  /// The registry of this build's NICs.
  [[nodiscard]] static NicRegistry& of_process();

  /// The software NIC for peers of these users, in any order, besides this process's own. Another set of users gets
  /// another NIC, because memory that is granted to any allowed peer (nic::Grant::To::kAnyPeer) must not reach users
  /// that another part of the process has allowed. Errors: those of nic::open_soft.
  [[nodiscard]] Result<std::shared_ptr<SharedNic>> soft(std::span<const uid_t> allowed_uids);
  /// An RDMA device. The first caller with given options chooses what they leave open; later callers with the same
  /// options share that choice. A device that has failed is not returned again: its users keep it, and others open it
  /// again. Errors: those of nic::open_verbs.
  [[nodiscard]] Result<SharedDevice> device(const nic::VerbsOptions& options);

 private:
  /// The requested options; or the properties of the opened device, which are the same for all requests that lead to
  /// it.
  struct Key {
    nic::Kind kind = nic::Kind::kSoft;
    std::vector<uid_t> allowed_uids{};  ///< Sorted, each once.
    std::string chaos{};                ///< The environment's chaos for the software NIC.
    std::string device{};
    std::uint8_t port = 0;
    std::optional<std::uint32_t> gid_index{};
    std::optional<std::array<std::uint8_t, 16>> gid{};
    /// Only for an opened device. On InfiniBand a requested row makes a difference: it needs a global route.
    std::optional<bool> has_grh{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  /// Its mutex is held while the NIC is opened, so that only callers that want the same one wait. Lock slots of
  /// requests before those of opened devices.
  struct Slot {
    Mutex mutex;
    std::weak_ptr<SharedNic> nic;
    nic::verbs::GidChoice gid{};  ///< For a device: the choice for callers with the slot's key.
  };
  [[nodiscard]] static Key key_of(const nic::VerbsOptions& options);
  [[nodiscard]] static Key key_of(const nic::DeviceFacts& facts, const nic::Nic& nic);
  [[nodiscard]] std::shared_ptr<Slot> slot_of(const Key& key);
  [[nodiscard]] std::shared_ptr<SharedNic> share(std::unique_ptr<nic::Nic> nic) const;

  const NicMakers makers_;
  Mutex mutex_;  ///< Guards only the table; not held during slow calls.
  std::map<Key, std::shared_ptr<Slot>> slots_;
};

}  // namespace verbena::link
