/* The peer's window holds 100 doubles. One side counts elements, verbs count bytes: 100 bytes are 12 doubles and a
 * half. The other way round (a byte count where elements are meant) it runs over the end. Neither is an error to the
 * NIC. */
#include <infiniband/verbs.h>

#include <stdint.h>

enum { COUNT = 100 };

int read_vector(struct ibv_qp* qp, struct ibv_mr* mr, uint64_t address, uint32_t rkey) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = COUNT, .lkey = mr->lkey}; /* BUG: COUNT * 8 bytes. */
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(qp, &wr, &bad);
}
