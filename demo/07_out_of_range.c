/* An index that came from a file, or from the peer, goes into the remote address. Past the window's end the peer's NIC
 * refuses, and the connection is dead; in a window that is larger than the table it overwrites what lies behind it. */
#include <infiniband/verbs.h>

#include <stdint.h>

int put(struct ibv_qp* qp, struct ibv_mr* mr, uint64_t table, uint32_t rkey, uint64_t index) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = table + 8 * index; /* BUG: nobody compares the index with the length of the table. */
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(qp, &wr, &bad);
}
