/* The peer has registered its table for reading only. A WRITE to it is posted without complaint; it is the peer's NIC
 * that refuses, and then both queue pairs are in the error state: everything else on this connection is lost too. */
#include <infiniband/verbs.h>

#include <stdint.h>

struct table { /* As the peer sent it: nothing in it says what may be done. */
  uint64_t address;
  uint32_t rkey;
};

int update(struct ibv_qp* qp, struct ibv_mr* mr, const struct table* table) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}; /* BUG: it may not. */
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = table->address;
  wr.wr.rdma.rkey = table->rkey;
  return ibv_post_send(qp, &wr, &bad);
}
