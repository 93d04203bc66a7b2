// The real librdmacm behind the table, in builds that have it (Meson option `verbs`).
#include "link/cm/library.hpp"

#include "link/cm/manager.hpp"

namespace verbena::link::cm {

namespace {

constexpr CmLibrary kLibrary = {
    .create_event_channel = &rdma_create_event_channel,
    .destroy_event_channel = &rdma_destroy_event_channel,
    .create_id = [](rdma_event_channel* channel,
                    rdma_cm_id** id) { return rdma_create_id(channel, id, nullptr, RDMA_PS_TCP); },
    .destroy_id = &rdma_destroy_id,
    .migrate_id = &rdma_migrate_id,
    .bind_addr = &rdma_bind_addr,
    .listen = &rdma_listen,
    .source_port = [](rdma_cm_id* id) { return std::uint16_t{rdma_get_src_port(id)}; },
    .resolve_addr = [](rdma_cm_id* id, sockaddr* to,
                       int timeout_ms) { return rdma_resolve_addr(id, nullptr, to, timeout_ms); },
    .resolve_route = &rdma_resolve_route,
    .connect = &rdma_connect,
    .establish = &rdma_establish,
    .accept = &rdma_accept,
    .reject = &rdma_reject,
    .disconnect = &rdma_disconnect,
    .init_qp_attr = &rdma_init_qp_attr,
    .get_event = &rdma_get_cm_event,
    .ack_event = &rdma_ack_cm_event,
};

}  // namespace

Result<std::unique_ptr<Manager>> start(nic::Nic& nic) { return start_with(kLibrary, nic); }
Result<nic::VerbsOptions> place_of(const std::string& address) { return place_of(kLibrary, address); }
Result<nic::VerbsOptions> place_towards(const std::string& host, std::uint16_t port, Deadline deadline) {
  return place_towards(kLibrary, host, port, deadline);
}

}  // namespace verbena::link::cm
