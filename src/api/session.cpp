#include "api/session.hpp"

namespace verbena::api {

using Space = session::TransferCall::Space;

rdma::Window peer_window_of(const session::Session& session) noexcept {
  const nic::Window& window = session.peer_window();
  return {.address = window.address,
          .length = window.length,
          .memory_id = window.memory_id,
          .rkey = window.rkey,
          .access = rdma::Access::kAll,
          .peer = session.peer_number()};
}

bool is_in_callback(const session::Session& session) noexcept {
  session::Home& home = session.home();
  return home.driver() == session::DrivenBy::kThread && home.loop().is_owner();
}

Status note_general(const session::Session& session, const char* call, Status status) noexcept {
  const session::Words words = session::words_of(session, status);
  return note(status, call, "{}{}", words.front, words.sentence);
}

Status note_transfer(const session::Session& session, const char* call, Status status, const session::Place& place,
                     const Terms& terms) noexcept {
  const bool is_physical = place.space == Space::kPhysical;
  const auto& [address, length, rkey] = place.span;
  switch (status) {
    case Status::kNotFound:
      if (is_physical)
        return note(status, call,
                    "{} {:#x} is not known: the peer has exported nothing by physical address, which it does by {}",
                    terms.address, address, terms.export_physical);
      return note(status, call, "no window of the peer has the rkey {:#x}: ask for one by {}", rkey, terms.find);
    case Status::kOutOfRange:
      if (const nic::Window& window = session.peer_window(); !is_physical && window.rkey == rkey)
        return note(status, call, "{} {:#x} and {}{}{} are not inside the peer's window of {} bytes at {:#x}",
                    terms.address, address, terms.length_prefix, length, terms.length_suffix, window.length,
                    window.address);
      return note(status, call, "{} {:#x} and {}{}{} are not inside what the peer has exported{}", terms.address,
                  address, terms.length_prefix, length, terms.length_suffix,
                  is_physical ? " by physical address" : " under that rkey");
    case Status::kRemoteAccess:
      if (session.reason() != Status::kOk) break;
      return note(status, call,
                  "the window with rkey {:#x} does not allow this: the peer must register it with that right", rkey);
    case Status::kAgain:
      return note(status, call, "{} operations are under way, or complete and not taken: take one by {}",
                  session::Transfers::kMostStarted, terms.complete);
    default: break;
  }
  return note_general(session, call, status);
}

}  // namespace verbena::api
