/* The reader gives up after a while and frees its buffer. The READ is still posted: the answer is written into memory
 * that malloc has given to somebody else by then, by hardware, and no debugger sees who did it. */
#include <infiniband/verbs.h>

#include <stdint.h>
#include <stdlib.h>

int read_with_timeout(struct ibv_pd* pd, struct ibv_qp* qp, struct ibv_cq* cq, uint64_t address, uint32_t rkey) {
  char* buffer = malloc(4096);
  struct ibv_mr* mr = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = 4096, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  struct ibv_wc wc;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  if (ibv_post_send(qp, &wr, &bad)) return -1;
  int found = 0;
  for (int attempt = 0; attempt < 1000 && found == 0; ++attempt) found = ibv_poll_cq(cq, 1, &wc);
  free(buffer); /* BUG: after 1000 polls without a completion the NIC has not written yet, and will. */
  return found;
}
