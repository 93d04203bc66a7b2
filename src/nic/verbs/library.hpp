// The functions of libibverbs that the verbs NIC calls, as one table: tests use a fake library instead, and only one
// file of the archive refers to the real one.
#pragma once

#include <infiniband/verbs.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace verbena::nic::verbs {

/// Each member is the libibverbs function of that name, with its return values and errno.
struct VerbsLibrary {
  /// Functions of the host and of a device. The other members make, use and end objects of an open device.
  struct Device {
    ibv_device** (*get_device_list)(int* count);
    void (*free_device_list)(ibv_device** list);
    ibv_context* (*open_device)(ibv_device* device);
    int (*close_device)(ibv_context* context);
    int (*query_device)(ibv_context* context, ibv_device_attr* attr);
    int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attr);
    ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries);
    int (*get_async_event)(ibv_context* context, ibv_async_event* event);
    void (*ack_async_event)(ibv_async_event* event);
  } device;
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_td* (*alloc_td)(ibv_context* context);
  int (*dealloc_td)(ibv_td* td);
  ibv_pd* (*alloc_parent_domain)(ibv_context* context, ibv_pd* pd, ibv_td* td);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access);
  int (*dereg_mr)(ibv_mr* mr);
  ibv_mw* (*alloc_mw)(ibv_pd* pd, ibv_mw_type type);
  int (*dealloc_mw)(ibv_mw* mw);
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq);
  void (*ack_cq_events)(ibv_cq* cq, unsigned count);
  ibv_cq* (*create_cq)(ibv_context* context, int cqe, ibv_comp_channel* channel);
  int (*destroy_cq)(ibv_cq* cq);
  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attr);
  int (*destroy_srq)(ibv_srq* srq);
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attr);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask);
  int (*destroy_qp)(ibv_qp* qp);
};

}  // namespace verbena::nic::verbs
