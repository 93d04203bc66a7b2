// Endpoints, the queue pair's way to RTS, and the blob bootstrap: what needs no socket.
#include "link/link.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "link/frames.hpp"

#include <algorithm>

namespace verbena::link {

namespace {

constexpr std::uint8_t kHopLimit = 64;

/// What a route knows for going to `state`; without a route nothing.
Result<int> route_attributes(const Route* route, ibv_qp_state state, ibv_qp_attr& attr) {
  attr = {};
  attr.qp_state = state;
  return route != nullptr ? route->attributes(attr) : Result<int>(0);
}

/// The attributes of a transition: what both types need, and what a reliable connection needs besides.
int mask_of(const ibv_qp* qp, int of_both, int of_reliable) noexcept {
  return qp->qp_type == IBV_QPT_UC ? of_both : of_both | of_reliable;
}

void set_path(ibv_qp_attr& attr, const Endpoint& local, const Endpoint& remote, const BringUp& options) noexcept {
  attr.path_mtu = static_cast<ibv_mtu>(std::min(local.qp.mtu, remote.qp.mtu));
  attr.dest_qp_num = remote.qp.qp_num;
  attr.rq_psn = remote.qp.psn;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = remote.qp.gid;
  attr.ah_attr.grh.sgid_index = options.gid_index;
  attr.ah_attr.grh.hop_limit = kHopLimit;
  attr.ah_attr.grh.traffic_class = options.traffic_class;
  attr.ah_attr.dlid = remote.qp.lid;
  attr.ah_attr.port_num = options.port;
}

Result<void> to_rtr(nic::Nic& nic, ibv_qp* qp, const Endpoint& local, const Endpoint& remote, const BringUp& options,
                    Deadline deadline) {
  ibv_qp_attr attr;
  VERBENA_ASSIGN(const int known, route_attributes(options.route, IBV_QPS_RTR, attr));
  if (known == 0) set_path(attr, local, remote, options);
  attr.max_dest_rd_atomic = std::min(local.qp.max_rd_atomic, remote.qp.max_rd_atomic);
  attr.min_rnr_timer = options.min_rnr_timer;
  constexpr int kOfBoth = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  return nic.modify_qp(qp, attr, mask_of(qp, kOfBoth, IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), deadline);
}

Result<void> to_rts(nic::Nic& nic, ibv_qp* qp, const Endpoint& local, const Endpoint& remote, const BringUp& options,
                    Deadline deadline) {
  ibv_qp_attr attr;
  VERBENA_ASSIGN(const int known, route_attributes(options.route, IBV_QPS_RTS, attr));
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_count;
  attr.rnr_retry = options.rnr_retry;
  if (known == 0) attr.sq_psn = local.qp.psn;
  // The same minimum as the responder's in to_rtr, so neither side sends more READs than the other
  // one can hold.
  attr.max_rd_atomic = std::min(local.qp.max_rd_atomic, remote.qp.max_rd_atomic);
  constexpr int kOfReliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return nic.modify_qp(qp, attr, mask_of(qp, IBV_QP_STATE | IBV_QP_SQ_PSN, kOfReliable), deadline);
}

}  // namespace

Status Endpoint::set_user_data(std::span<const std::byte> data) noexcept {
  if (data.size() > kMaxPrivateBytes) return Status::kTooLong;
  std::ranges::copy(data, private_data.begin());
  private_bytes = static_cast<std::uint16_t>(data.size());
  return Status::kOk;
}

Endpoint describe(const nic::Nic& nic, const ibv_qp* qp, std::uint32_t recv_depth) {
  Endpoint endpoint;
  endpoint.nic = nic.kind();
  endpoint.qp = nic.address_of(qp);
  endpoint.qp.psn = static_cast<std::uint32_t>(random_word() & 0xFFFFFFU);
  endpoint.recv_depth = recv_depth;
  endpoint.generation = random_word();
  return endpoint;
}

Result<void> check_kind(const nic::Nic& nic, const Endpoint& remote) {
  if (nic.kind() == remote.nic) return {};
  return fail(Status::kRejected, "bring_up", 0,
              "this side uses the {} NIC and the peer the {} NIC: choose the same kind on both sides",
              nic::to_string(nic.kind()), nic::to_string(remote.nic));
}

Result<void> prepare(nic::Nic& nic, ibv_qp* qp, const BringUp& options, Deadline deadline) {
  ibv_qp_attr attr;
  VERBENA_ASSIGN(const int known, route_attributes(options.route, IBV_QPS_INIT, attr));
  if (known == 0) attr.port_num = options.port;
  attr.qp_access_flags = static_cast<unsigned>(options.access);
  return nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, deadline);
}

Result<void> check_fit(const nic::Nic& nic, const Endpoint& local, const Endpoint& remote, const BringUp& options) {
  if (const char* fault = fault_of(local)) {
    return fail(Status::kBadArgument, "bring_up", 0, "the local endpoint has {}: make it with describe", fault);
  }
  if (const char* fault = fault_of(remote)) {
    return fail(Status::kProtocol, "bring_up", 0, "the peer's endpoint has {}", fault);
  }
  VERBENA_TRY(check_kind(nic, remote));
  if (options.route != nullptr || local.qp.network == remote.qp.network) return {};
  return fail(Status::kRejected, "bring_up", 0,
              "this side's address is {} and the peer's {}, so their packets would never meet: choose GIDs of one "
              "kind (option gid_index; verbena-info lists them)",
              nic::to_string(local.qp.network), nic::to_string(remote.qp.network));
}

Result<void> bring_up(nic::Nic& nic, ibv_qp* qp, const Endpoint& local, const Endpoint& remote, const BringUp& options,
                      Deadline deadline) {
  VERBENA_TRY(check_fit(nic, local, remote, options));
  // After kAgain it is further: the same step goes on.
  if (nic.qp_state(qp) == IBV_QPS_RESET) VERBENA_TRY(prepare(nic, qp, options, deadline));
  VERBENA_TRY(to_rtr(nic, qp, local, remote, options, deadline));
  return to_rts(nic, qp, local, remote, options, deadline);
}

Blob export_blob(const Endpoint& endpoint) noexcept {
  const Frame hello = encode_hello(endpoint);
  Blob blob{};
  std::ranges::copy(hello.bytes(), blob.begin());
  return blob;
}

Result<Endpoint> import_blob(std::span<const std::byte> blob) {
  const auto named = [](const Error& error) noexcept {
    return fail(error.status(), "import_blob", 0, "the blob is not one that export_blob of this release made: {}",
                error.text());
  };
  if (blob.size() != kBlobBytes) {
    return fail(Status::kProtocol, "import_blob", 0, "the blob has {} bytes and a whole one has {}", blob.size(),
                kBlobBytes);
  }
  const auto size = bytes_needed(blob);
  if (!size) return named(size.error());
  auto endpoint = decode_hello(blob.first(*size));
  if (!endpoint) return named(endpoint.error());
  if (std::ranges::any_of(blob.subspan(*size), [](std::byte byte) { return byte != std::byte{0}; })) {
    return fail(Status::kProtocol, "import_blob", 0, "the blob's padding is not zero: it was changed on its way");
  }
  return endpoint;
}

}  // namespace verbena::link
