// The real librdmacm behind the table, in builds that have it (Meson option `verbs`).
#include "link/cm/library.hpp"

#include "link/cm/manager.hpp"

namespace verbena::link::cm {

namespace {

constexpr CmLibrary kLibrary = {
    .create_event_channel = [] { return rdma_create_event_channel(); },
    .destroy_event_channel = [](rdma_event_channel* channel) { rdma_destroy_event_channel(channel); },
    .create_id = [](rdma_event_channel* channel,
                    rdma_cm_id** id) { return rdma_create_id(channel, id, nullptr, RDMA_PS_TCP); },
    .destroy_id = [](rdma_cm_id* id) { return rdma_destroy_id(id); },
    .migrate_id = [](rdma_cm_id* id, rdma_event_channel* channel) { return rdma_migrate_id(id, channel); },
    .bind_addr = [](rdma_cm_id* id, sockaddr* address) { return rdma_bind_addr(id, address); },
    .listen = [](rdma_cm_id* id, int backlog) { return rdma_listen(id, backlog); },
    .source_port = [](rdma_cm_id* id) { return std::uint16_t{rdma_get_src_port(id)}; },
    .resolve_addr = [](rdma_cm_id* id, sockaddr* to,
                       int timeout_ms) { return rdma_resolve_addr(id, nullptr, to, timeout_ms); },
    .resolve_route = [](rdma_cm_id* id, int timeout_ms) { return rdma_resolve_route(id, timeout_ms); },
    .connect = [](rdma_cm_id* id, rdma_conn_param* param) { return rdma_connect(id, param); },
    .establish = [](rdma_cm_id* id) { return rdma_establish(id); },
    .accept = [](rdma_cm_id* id, rdma_conn_param* param) { return rdma_accept(id, param); },
    .reject = [](rdma_cm_id* id, const void* data, std::uint8_t bytes) { return rdma_reject(id, data, bytes); },
    .disconnect = [](rdma_cm_id* id) { return rdma_disconnect(id); },
    .init_qp_attr = [](rdma_cm_id* id, ibv_qp_attr* attr, int* mask) { return rdma_init_qp_attr(id, attr, mask); },
    .get_event = [](rdma_event_channel* channel, rdma_cm_event** event) { return rdma_get_cm_event(channel, event); },
    .ack_event = [](rdma_cm_event* event) { return rdma_ack_cm_event(event); },
};

}  // namespace

Result<std::unique_ptr<Manager>> start(nic::Nic& nic) { return start_with(kLibrary, nic); }
Result<Place> place_of(const std::string& address) { return place_of(kLibrary, address); }
Result<Place> place_towards(const std::string& host, std::uint16_t port, Deadline deadline) {
  return place_towards(kLibrary, host, port, deadline);
}

}  // namespace verbena::link::cm
