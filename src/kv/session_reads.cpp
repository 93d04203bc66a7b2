// The server's end of a channel: values that it READs out of the client's memory. The client may change the bytes
// meanwhile, which changes what is stored and nothing else: the one copy is taken out of its reach before its checksum
// is taken.
#include "kv/session.hpp"
#include "kv/worker.hpp"

namespace verbena::kv {

void Session::put_read(const wire::Request& request) noexcept {
  worker_.counters().count_request(large_kind(request.expected));
  const bool is_first = reads_.empty();
  // More PUTs than requests in flight.
  if (!reads_.add(request, ticks_now())) return channel_->fail(Status::kProtocol);
  if (is_first) begin_reads();
}

/// Begins with the first PUT that there is memory for, and answers those before it.
void Session::begin_reads() noexcept {
  while (!reads_.empty()) {
    const PutReads::Put& put = reads_.first();
    const Store::Change reserved = reserve_for(put);
    if (reserved.status != Status::kOk) {
      end_put(reserved);
      continue;
    }
    // The NICs check the key and the range: a request that names other memory ends its connection.
    channel_->lend_window(
        {.address = put.address, .length = put.length, .rkey = put.rkey, .access = IBV_ACCESS_REMOTE_READ});
    return post_reads();
  }
}

Store::Change Session::reserve_for(const PutReads::Put& put) noexcept {
  const Store::Change reserved =
      store_.reserve(put.key(), put.length, put.expected, reads_.pending, owner(), put.ttl_ns);
  // There is no memory beside the old value: the new one may take its place once all of it is here.
  if (is_for_memory(reserved.status) && reads_.take_spare()) [[unlikely]]
    return {.status = Status::kOk};
  return reserved;
}

void Session::post_reads() noexcept {
  while (const auto piece = reads_.next(worker_.window_lkey())) {
    const Status status = channel_->start_read(piece->to, piece->from, kReadToken);
    if (status != Status::kOk) return channel_->fail(Status::kProtocol);
    reads_.posted(*piece);
  }
}

void Session::on_read() noexcept {
  if (is_leaving_) return;
  if (!reads_.arrived()) return post_reads();
  const PutReads::Put& put = reads_.first();
  end_put(reads_.is_in_spare() ? store_.put(put.key(), reads_.in_spare(), put.expected, owner(), put.ttl_ns)
                               : store_.commit(reads_.pending, put.expected));
  begin_reads();
}

void Session::end_put(Store::Change change) noexcept {
  const PutReads::Put& put = reads_.first();
  worker_.counters().record_ticks(large_kind(put.expected), ticks_now() - put.began_ticks);
  reply_change(put.id, change, put.length);
  reads_.pop();
}

}  // namespace verbena::kv
