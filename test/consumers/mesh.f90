! The mesh of the module in two processes: what each call does to arguments, data of other types and ranks, text, lists,
! callbacks, errors. What the calls themselves do is tested in C.
! usage: mesh ID DIRECTORY PORT PORT
module meshes
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), parameter :: PATIENCE_MS = 60000
contains
  subroutine must(code, what)
    integer(c_int), intent(in) :: code
    character(len=*), intent(in) :: what
    call check(code == MESH_OK, what//': '//mesh_error_text(code)//'; '//mesh_error_detail())
  end subroutine
  subroutine check(is, what)
    logical, intent(in) :: is
    character(len=*), intent(in) :: what
    if (is) return
    print '(a)', what
    stop 1, quiet=.true.
  end subroutine

  ! The next completion of this side's own, or of what the peer did.
  function await(lane, which, kind) result(one)
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int), intent(in) :: which, kind
    type(mesh_completion_t) :: one
    type(mesh_completion_t) :: some(1)
    do
      call check(mesh_wait(lane, some, which, PATIENCE_MS) == 1, 'nothing comes: '//mesh_error_detail())
      if (some(1)%kind /= MESH_KIND_JOINED) exit
    end do
    one = some(1)
    call check(one%kind == kind, 'another kind of completion came')
    call check(one%code == MESH_OK .or. kind == MESH_KIND_LEFT, 'it failed: '//mesh_error_text(one%code))
  end function

  ! The collective call of one process.
  function gather_one(mine, all, bytes_each, context) bind(C)
    type(c_ptr), value :: mine
    type(c_ptr), value :: all
    integer(c_size_t), value :: bytes_each
    type(c_ptr), value :: context
    integer(c_int) :: gather_one
    integer(c_int8_t), pointer :: from(:), to(:)
    integer(c_int), pointer :: calls
    call c_f_pointer(mine, from, [bytes_each])
    call c_f_pointer(all, to, [bytes_each])
    call c_f_pointer(context, calls)
    to = from
    calls = calls + 1
    gather_one = merge(0, 1, bytes_each == MESH_BLOB_BYTES)
  end function

  subroutine use_messages(lane, id)
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int), intent(in) :: id
    integer(c_int) :: matrix(3, 4), peer, i
    integer(c_int), pointer :: numbers(:)
    type(c_ptr) :: room
    type(mesh_completion_t) :: one
    type(mesh_completion_t) :: none(2)
    peer = 1 - id
    ! A row, which is not contiguous; a scalar with an immediate; text in place; nothing with an immediate.
    matrix = reshape([(i, i=1, 12)], [3, 4]) + 100 * id
    call must(mesh_send(lane, peer, matrix(2, :), 16_c_size_t, 1_c_int64_t), 'mesh_send')
    call must(mesh_send_imm(lane, peer, 7 + id, 4_c_size_t, 2_c_int64_t, 0), 'mesh_send_imm')
    call must(mesh_reserve(lane, peer, room), 'mesh_reserve')
    call c_f_pointer(room, numbers, [256])
    numbers(1:3) = [31, 32, 33] + id
    call must(mesh_commit(lane, peer, room, 12_c_size_t, 3_c_int64_t), 'mesh_commit')
    call must(mesh_reserve(lane, peer, room), 'mesh_reserve')
    call must(mesh_cancel(lane, peer, room), 'mesh_cancel')
    call check(mesh_cancel(lane, peer, room) == MESH_ERR_BAD_ARGUMENT, 'it is given back twice')
    call must(mesh_reserve(lane, peer, room), 'mesh_reserve')
    call must(mesh_commit_imm(lane, peer, room, 0_c_size_t, 4_c_int64_t, -1), 'mesh_commit_imm')
    call must(mesh_flush(lane), 'mesh_flush')
    call must(mesh_flush_peer(lane, peer), 'mesh_flush_peer')
    do i = 1, 4
      one = await(lane, MESH_SENDS, MESH_KIND_SEND)
      call check(one%cookie == i .and. one%peer == peer, 'another send has ended')
    end do

    one = await(lane, MESH_RECEIVES, MESH_KIND_RECEIVE)
    call c_f_pointer(one%bytes, numbers, [one%length / 4])
    call check(one%peer == peer .and. one%has_immediate == 0, 'the row has an immediate')
    call check(size(numbers) == 4, 'the row has another length')
    call check(all(numbers == [2, 5, 8, 11] + 100 * peer), 'another row has come')
    call must(mesh_release(lane, one), 'mesh_release')
    call check(mesh_release(lane, one) == MESH_ERR_BAD_ARGUMENT, 'it is released twice')
    one = await(lane, MESH_RECEIVES, MESH_KIND_RECEIVE)
    call c_f_pointer(one%bytes, numbers, [one%length / 4])
    call check(one%has_immediate == 1 .and. one%immediate == 0 .and. one%length == 4, 'the scalar has no immediate')
    call check(numbers(1) == 7 + peer, 'another scalar has come')
    call must(mesh_release(lane, one), 'mesh_release')
    one = await(lane, MESH_RECEIVES, MESH_KIND_RECEIVE)
    call c_f_pointer(one%bytes, numbers, [one%length / 4])
    call check(size(numbers) == 3, 'what was written in place has another length')
    call check(all(numbers == [31, 32, 33] + peer), 'something else was written in place')
    call must(mesh_release(lane, one), 'mesh_release')
    one = await(lane, MESH_RECEIVES, MESH_KIND_RECEIVE)
    call check(one%length == 0 .and. one%immediate == -1, 'the last message is another')
    call must(mesh_release(lane, one), 'mesh_release')
    call check(mesh_poll(lane, none, MESH_ALL) == 0, 'more came than was sent')
    call check(mesh_poll(lane, none, 3) == MESH_ERR_BAD_ARGUMENT, 'there is a fourth selection')
  end subroutine

  subroutine use_windows(mesh, lane, id)
    type(mesh_t), intent(in) :: mesh
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int), intent(in) :: id
    integer(c_int) :: peer
    integer(c_int64_t), pointer, volatile :: words(:)
    integer(c_int64_t), target, volatile :: mine(8)
    type(c_ptr) :: memory
    type(mesh_window_t) :: window, none
    type(mesh_completion_t) :: one
    peer = 1 - id
    call must(mesh_allocate(mesh, 4096_c_size_t, memory), 'mesh_allocate')
    call c_f_pointer(memory, words, [512])
    call check(all(words == 0), 'it is not zeroed')
    words(1:2) = [40, 41] + 10 * id
    call must(mesh_publish(mesh, 'words  ', memory, 4096_c_size_t), 'mesh_publish')
    call check(mesh_publish(mesh, 'words', memory, 8_c_size_t) == MESH_ERR_BUSY, 'a name is given twice')
    call must(mesh_find(lane, peer, 'words', PATIENCE_MS, window), 'mesh_find')
    call check(window%length == 4096 .and. window%peer == peer, 'it is another window')
    call check(window%access == MESH_ACCESS_REMOTE_ALL, 'it has other rights')
    call check(mesh_find(lane, peer, 'no words', 0, none) == MESH_ERR_NOT_FOUND, 'there is a window of no words')
    call must(mesh_add(mesh, c_loc(mine), c_sizeof(mine), MESH_ACCESS_LOCAL), 'mesh_add')

    call must(mesh_read(lane, window, 8_c_int64_t, c_loc(mine(1)), 8_c_size_t, 5_c_int64_t), 'mesh_read')
    one = await(lane, MESH_SENDS, MESH_KIND_READ)
    call check(one%cookie == 5 .and. one%length == 8, 'another read has ended')
    call check(mine(1) == 41 + 10 * peer, 'another word was read')
    mine(2:3) = [71, 72] + id
    call must(mesh_write(lane, window, 16_c_int64_t, c_loc(mine(2)), 8_c_size_t, 6_c_int64_t), 'mesh_write')
    one = await(lane, MESH_SENDS, MESH_KIND_WRITE)
    call check(one%cookie == 6, 'another write has ended')
    call must(mesh_write_imm(lane, window, 24_c_int64_t, c_loc(mine(3)), 8_c_size_t, 7_c_int64_t, 77), 'mesh_write_imm')
    one = await(lane, MESH_SENDS, MESH_KIND_WRITE)
    one = await(lane, MESH_RECEIVES, MESH_KIND_WRITTEN)
    call check(one%has_immediate == 1 .and. one%immediate == 77 .and. one%length == 8, 'it says something else')
    call check(c_associated(one%bytes, c_loc(words(4))), 'it was written somewhere else')
    call check(all(words(3:4) == [71, 72] + peer), 'something else was written')
    call check(mesh_write(lane, window, 4096_c_int64_t, c_loc(mine), 8_c_size_t, 0_c_int64_t) &
               == MESH_ERR_OUT_OF_RANGE, 'a word behind the window is written')
    call check(index(mesh_error_detail(), '4096') > 0, 'the detail is: '//mesh_error_detail())

    call must(mesh_fetch_add(lane, window, 0_c_int64_t, 5_c_int64_t, 8_c_int64_t), 'mesh_fetch_add')
    one = await(lane, MESH_SENDS, MESH_KIND_ATOMIC)
    call check(one%old == 40 + 10 * peer .and. one%cookie == 8, 'it was added to another number')
    call must(mesh_compare_swap(lane, window, 0_c_int64_t, one%old + 5, -9_c_int64_t, 9_c_int64_t), 'mesh_compare_swap')
    one = await(lane, MESH_SENDS, MESH_KIND_ATOMIC)
    call check(one%old == 45 + 10 * peer, 'another number was found')
    call must(mesh_barrier(lane, PATIENCE_MS), 'mesh_barrier')
    call check(words(1) == -9, 'nothing was swapped')
  end subroutine

  subroutine use_all_processes(lane, id)
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int), intent(in) :: id
    real(c_double) :: of_all(2, 2)
    type(mesh_counters_t) :: counters
    of_all = 0
    call must(mesh_gather(lane, [1.5_c_double + id, -2.5_c_double - id], 16_c_size_t, of_all, PATIENCE_MS), &
              'mesh_gather')
    call check(all(of_all == reshape([1.5, -2.5, 2.5, -3.5], [2, 2])), 'other numbers were gathered')
    call must(mesh_lane_counters(lane, counters), 'mesh_lane_counters')
    ! Four messages, a read, two writes, two atomics.
    call check(counters%work_requests >= 9, 'less was posted than was asked for')
    call check(counters%completions > 0 .and. counters%doorbells > 0, 'less was done than was asked for')
    call check(counters%bytes >= 16 + 4 + 12 + 16, 'fewer bytes were posted than were sent')
    call check(counters%strays == 0 .and. counters%quarantined == 0, 'something is left')
  end subroutine
end module meshes

program mesh_of_two
  use meshes
  implicit none
  type(mesh_options_t) :: options
  type(mesh_carrier_t) :: carrier
  type(mesh_t) :: mesh
  type(mesh_lane_t) :: lane
  type(mesh_completion_t) :: one
  character(len=1024) :: argument, directory
  character(len=32) :: hosts(2)
  integer(c_int) :: id, ports(2), i
  integer(c_int), target, volatile :: calls = 0

  call get_command_argument(1, argument)
  read (argument, *) id
  call get_command_argument(2, directory)
  do i = 1, 2
    call get_command_argument(2 + i, argument)
    read (argument, *) ports(i)
    hosts(i) = '127.0.0.1:'//trim(argument)
  end do

  call mesh_options_init(options)
  call check(options%processes == 1 .and. options%message_bytes == 1024 .and. options%depth == 8, 'other defaults')
  call check(options%wait == MESH_WAIT_ADAPTIVE .and. options%join_timeout_ms == 30000, 'other defaults')
  call check(options%device == '' .and. .not. allocated(options%allowed_uids), 'other defaults')
  call get_environment_variable('VERBENA_NIC', options%device)
  if (options%device == '') options%device = 'soft'
  options%id = id
  options%processes = 2
  options%join_timeout_ms = PATIENCE_MS
  options%allowed_uids = [12345, 12346]
  options%job = 'job of two'

  ! Refused before anything is opened. A call that fails takes the carrier, too.
  call check(mesh_carrier_directory('/no/such/directory', 'two', carrier) == MESH_ERR_NOT_FOUND, 'there is such a one')
  call check(.not. c_associated(carrier%handle), 'it gives a carrier')
  call check(index(mesh_error_detail(), '/no/such/directory') > 0, 'the detail is: '//mesh_error_detail())
  call check(mesh_carrier_directory(directory, 'a/b', carrier) == MESH_ERR_BAD_ARGUMENT, 'a/b is a job')
  call must(mesh_carrier_directory(directory, 'two', carrier), 'mesh_carrier_directory')
  call mesh_carrier_destroy(carrier)
  call must(mesh_carrier_directory(directory, 'two', carrier), 'mesh_carrier_directory')
  options%key_file = '/no/such/file'
  call check(mesh_join(options, carrier, mesh) /= MESH_OK, 'there is such a file')
  call check(.not. c_associated(mesh%handle), 'it gives a mesh')
  options%key_file = ''

  call must(mesh_carrier_directory(directory, 'two', carrier), 'mesh_carrier_directory')
  call must(mesh_join(options, carrier, mesh), 'mesh_join')
  call check(index(mesh_description(mesh), 'port') > 0, 'the description is: '//mesh_description(mesh))
  lane = mesh_lane(mesh, 1)
  call check(.not. c_associated(lane%handle), 'there is a second lane')
  lane = mesh_lane(mesh, 0)
  call check(mesh_is_here(lane, 1 - id), 'nobody is here')
  call check(.not. mesh_is_here(lane, 2), 'there is a third process')
  call check(index(mesh_error_detail(), 'peer') > 0, 'the detail is: '//mesh_error_detail())
  call use_messages(lane, id)
  call use_windows(mesh, lane, id)
  call use_all_processes(lane, id)
  call must(mesh_leave(mesh), 'mesh_leave')

  ! The same two by a list of hosts. Process 1 leaves first.
  options%port = ports(id + 1)
  call must(mesh_carrier_hosts(hosts, carrier), 'mesh_carrier_hosts')
  call must(mesh_join(options, carrier, mesh), 'mesh_join')
  call check(index(mesh_description(mesh), 'port '//hosts(id + 1)(11:15)) > 0, &
             'it has another port: '//mesh_description(mesh))
  lane = mesh_lane(mesh, 0)
  call must(mesh_barrier(lane, PATIENCE_MS), 'mesh_barrier')
  if (id == 0) then
    one = await(lane, MESH_RECEIVES, MESH_KIND_LEFT)
    call check(one%code == MESH_ERR_CLOSED .and. one%peer == 1, 'process 1 has not left')
    call check(.not. mesh_is_here(lane, 1), 'process 1 is here')
  end if
  call must(mesh_leave(mesh), 'mesh_leave')

  ! Each alone, by a call of its own.
  options%id = 0
  options%processes = 1
  options%port = 0
  call must(mesh_carrier_gather(1, gather_one, c_loc(calls), carrier), 'mesh_carrier_gather')
  call must(mesh_join(options, carrier, mesh), 'mesh_join')
  call check(calls == 1, 'the call was not called')
  call must(mesh_leave(mesh), 'mesh_leave')
end program mesh_of_two
