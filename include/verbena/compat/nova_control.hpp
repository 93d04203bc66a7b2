/// \file
/// Servers of the RDMALib interface: their hosts, and the mesh that connects them.
#pragma once

#include <verbena/compat/nova_error.hpp>
#include <verbena/mesh.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

// The field's names, not ours. NOLINTBEGIN(readability-identifier-naming)

namespace nova {

/// A server's host.
struct Host {
  std::uint32_t server_id = 0;  ///< Any number; each server has its own.
  std::string ip;               ///< A name or number.
  int port = 0;                 ///< For the program; not used here.
};

/// The end that a store connects to: the same thread of another server.
struct QPEndPoint {
  Host host;                    ///< Where it is.
  std::uint32_t server_id = 0;  ///< The server's id.
  std::uint32_t thread_id = 0;  ///< The same as the store's.
};

namespace detail {

/// The terms that all stores of one process must agree on: the hosts by rank, and the limits.
struct Terms {
  unsigned rank = 0;                 ///< This process, in the order of server ids.
  std::vector<std::uint32_t> ids{};  ///< Server ids, this one's too, ascending.
  std::vector<std::string> hosts{};  ///< Host and port of each server; this server's own is not dialed.
  std::uint32_t max_num_sends = 0;   ///< As the store has it.
  std::uint32_t max_msg_size = 0;    ///< As the store has it.
  std::uint32_t batch = 0;           ///< As the store has it.
  /// Whether two stores agree.
  bool operator==(const Terms&) const = default;
};

}  // namespace detail

/// The hosts of "host:port,host:port", with ids from 0 on; an IPv6 address is in brackets. Errors: kBadArgument.
[[nodiscard]] inline std::vector<Host> convert_hosts(const std::string& list) {
  std::vector<Host> hosts;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    begin = end + 1;
    if (entry.empty()) continue;
    const std::size_t colon = std::min(entry.rfind(':'), entry.size());
    Host host{.server_id = static_cast<std::uint32_t>(hosts.size()), .ip = entry.substr(0, colon), .port = 0};
    const bool is_bracketed = host.ip.starts_with('[') && host.ip.ends_with(']');
    if (is_bracketed) host.ip = host.ip.substr(1, host.ip.size() - 2);
    const char* const last = entry.data() + entry.size();
    const auto [rest, error] = std::from_chars(std::min(entry.data() + colon + 1, last), last, host.port);
    const bool is_port = error == std::errc() && rest == last && host.port >= 0 && host.port <= 65535;
    if (!is_port || host.ip.empty() || (!is_bracketed && host.ip.find(':') != std::string::npos))
      detail::refuse("\"" + entry + "\" in the list of hosts must be host:port or [address]:port");
    hosts.push_back(std::move(host));
  }
  return hosts;
}

/// Bytes that a store takes of its `buf` for each server: none, because the mesh has the rings.
[[nodiscard]] constexpr std::uint64_t nrdma_buf_unit() noexcept { return 0; }
/// The same for all servers and threads.
[[nodiscard]] constexpr std::uint64_t nrdma_buf_total() noexcept { return 0; }

class NovaRDMARCStore;

}  // namespace nova

namespace rdmaio {

/// This server: its port, and the mesh that its stores share. Stores keep what they need of it. \thread any
class RdmaCtrl {
 public:
  /// Server `server_id` listens on `port + server_id`, once its first store is initialized. The store sets id,
  /// processes, port, message_bytes, depth, operations, reservations and batch of the options. `threads` is the number
  /// of stores of each server. `join_timeout` bounds every wait, not only that of `Init`. Without an `address` it
  /// listens on all addresses.
  RdmaCtrl(int server_id, int port, verbena::mesh::Options options = {})
      : server_id_(server_id), port_(port), options_(std::move(options)) {
    if (server_id < 0 || port < 1 || port > 65535 - server_id)
      nova::detail::refuse("server_id must be 0 or more, and port + server_id 1 to 65535; got port " +
                           std::to_string(port) + " and server_id " + std::to_string(server_id));
    if (options_.address.empty()) options_.address = "0.0.0.0";
  }
  RdmaCtrl(const RdmaCtrl&) = delete;
  RdmaCtrl& operator=(const RdmaCtrl&) = delete;
  ~RdmaCtrl() = default;  ///< Leaves the mesh once its stores have ended, too.

  /// The mesh, for what RDMALib lacks; null before `Init` of a store.
  [[nodiscard]] std::shared_ptr<verbena::mesh::Mesh> mesh() const {
    const std::lock_guard lock(mutex_);
    return mesh_;
  }

 private:
  friend class nova::NovaRDMARCStore;

  /// Joins with the first store; others need the same terms.
  [[nodiscard]] std::shared_ptr<verbena::mesh::Mesh> join(const nova::detail::Terms& terms) {
    const std::lock_guard lock(mutex_);
    if (mesh_ != nullptr && terms_ == terms) return mesh_;
    if (mesh_ != nullptr)
      nova::detail::refuse(
          "all stores of a server must have the same servers, port, max_num_sends, max_msg_size and "
          "doorbell_batch_size");
    verbena::mesh::Options options = options_;
    options.id = terms.rank;
    options.processes = static_cast<unsigned>(terms.ids.size());
    options.port = static_cast<std::uint16_t>(port_ + server_id_);
    options.message_bytes = terms.max_msg_size;
    // Twice what a server posts at a time, so that answers from callbacks never wait for each other's room. Also enough
    // for the announcements of all threads' memory at the start.
    options.depth = std::max({4U, 2 * terms.max_num_sends, options.threads});
    options.operations = terms.max_num_sends;
    options.reservations = std::min(1024U, terms.max_num_sends);
    options.batch = std::min(32U, terms.batch);
    options.job += "/nova/" + std::to_string(hash_of(terms.ids));
    std::vector<std::string> hosts = terms.hosts;
    hosts[terms.rank] = "localhost:" + std::to_string(options.port);
    mesh_ = nova::detail::value_of(
        verbena::mesh::Mesh::join(options, nova::detail::value_of(verbena::mesh::host_list_carrier(hosts))));
    terms_ = terms;
    return mesh_;
  }

  /// Gives the peers of a thread access to the store's memory.
  void share(std::span<std::byte> memory, unsigned thread) {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](std::span<std::byte> other) {
      return memory.data() >= other.data() && memory.data() + memory.size() <= other.data() + other.size();
    };
    if (std::ranges::none_of(shared_, is_it)) {
      nova::detail::value_of(mesh_->add(memory, verbena::rdma::Access::kAll));
      shared_.push_back(memory);
    }
    nova::detail::value_of(mesh_->publish(window_name(thread), memory));
  }
  [[nodiscard]] static std::string window_name(unsigned thread) { return "nova/" + std::to_string(thread); }

  /// Distinguishes lists of servers, so that a server with another list is refused.
  [[nodiscard]] static std::uint32_t hash_of(const std::vector<std::uint32_t>& ids) {
    std::uint32_t hash = 2166136261U;  // FNV-1a.
    for (const std::uint32_t id : ids) hash = (hash ^ id) * 16777619U;
    return hash;
  }

  const int server_id_;
  const int port_;
  verbena::mesh::Options options_;
  mutable std::mutex mutex_;  ///< Guards the members below.
  std::shared_ptr<verbena::mesh::Mesh> mesh_;
  nova::detail::Terms terms_;
  std::vector<std::span<std::byte>> shared_;
};

}  // namespace rdmaio

// NOLINTEND(readability-identifier-naming)
