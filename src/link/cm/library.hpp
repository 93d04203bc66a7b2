// The functions of librdmacm that connections through RDMA CM call, as one table: tests use a fake library instead, and
// only one file of the archive refers to the real one.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>

namespace verbena::link::cm {

/// Each member is the librdmacm function of that name, with its return values and errno. Event channels do not block.
struct CmLibrary {
  rdma_event_channel* (*create_event_channel)();
  void (*destroy_event_channel)(rdma_event_channel* channel);
  /// Makes ids of the TCP port space.
  int (*create_id)(rdma_event_channel* channel, rdma_cm_id** id);
  int (*destroy_id)(rdma_cm_id* id);
  int (*migrate_id)(rdma_cm_id* id, rdma_event_channel* channel);
  int (*bind_addr)(rdma_cm_id* id, sockaddr* address);
  int (*listen)(rdma_cm_id* id, int backlog);
  std::uint16_t (*source_port)(rdma_cm_id* id);  ///< In network order.
  int (*resolve_addr)(rdma_cm_id* id, sockaddr* to, int timeout_ms);
  int (*resolve_route)(rdma_cm_id* id, int timeout_ms);
  int (*connect)(rdma_cm_id* id, rdma_conn_param* param);
  int (*establish)(rdma_cm_id* id);
  int (*accept)(rdma_cm_id* id, rdma_conn_param* param);
  int (*reject)(rdma_cm_id* id, const void* data, std::uint8_t bytes);
  int (*disconnect)(rdma_cm_id* id);
  int (*init_qp_attr)(rdma_cm_id* id, ibv_qp_attr* attr, int* mask);
  int (*get_event)(rdma_event_channel* channel, rdma_cm_event** event);
  int (*ack_event)(rdma_cm_event* event);
};

}  // namespace verbena::link::cm
