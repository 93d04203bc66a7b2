! The calls of the module between two sides in one program: what each does to arguments, data of other types and ranks,
! callbacks, errors. What the calls themselves do is tested in C.
module sides
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), volatile :: greetings = 0, writes = 0, departures = 0, why = RDMA_OK
  type(rdma_conn), volatile :: accepted
contains
  subroutine on_accept(conn, user) bind(C)
    type(rdma_conn), value :: conn
    type(c_ptr), value :: user
    integer(c_int), pointer :: count
    call c_f_pointer(user, count)
    count = count + 1
    accepted = conn
    call must(rdmaConnKeep(conn), 'rdmaConnKeep')
  end subroutine
  subroutine on_message(conn, message, user) bind(C)
    type(rdma_conn), value :: conn
    type(rdma_incoming), intent(in) :: message
    type(c_ptr), value :: user
    integer(c_int32_t), pointer :: numbers(:)
    integer(c_size_t) :: length
    call c_f_pointer(message%data, numbers, [message%length / 4])
    if (message%kind == RDMA_WRITTEN) then
      if (message%has_imm == 1 .and. message%imm == 77 .and. message%length == 8 .and. numbers(2) == 12) &
        writes = writes + 1
    end if
    length = rdmaConnSendWithImm(conn, message%imm, numbers, message%length)
    if (length == message%length) greetings = greetings + 1
  end subroutine
  subroutine on_disconnect(conn, code, user) bind(C)
    type(rdma_conn), value :: conn
    integer(c_int), value :: code
    type(c_ptr), value :: user
    why = code
    departures = departures + 1
  end subroutine

  subroutine must(code, what)
    integer(c_int), intent(in) :: code
    character(len=*), intent(in) :: what
    call check(code == RDMA_OK, what//': '//rdmaErrorText(code)//'; '//rdmaErrorDetail())
  end subroutine
  subroutine check(is, what)
    logical, intent(in) :: is
    character(len=*), intent(in) :: what
    if (is) return
    print '(a)', what
    stop 1, quiet=.true.
  end subroutine
end module sides

program calls
  use sides
  implicit none
  type(rdma_listener) :: listener
  type(rdma_conn) :: conn
  type(rdma_options) :: options
  type(rdma_incoming) :: message
  type(rdma_memory), pointer :: there, here, mine
  type(rdma_window) :: window, default_window
  type(rdma_completion) :: completion
  integer(c_int), target, volatile :: count = 0
  integer(c_int32_t) :: four(4) = [11, 12, 13, 14], back(4), matrix(3, 4), scalar
  integer(c_int32_t), pointer :: remote(:), local(:)
  integer(c_int64_t) :: old, physical
  integer(c_int64_t), target :: word = 5
  integer(c_size_t) :: length
  integer :: i

  call rdmaOptionsInit(options)
  call check(options%timeout_ms == 5000 .and. options%max_connections == 64, 'the defaults are not those of C')
  call check(options%max_message_bytes == 67108864, 'the defaults are not those of C')
  call check(.not. c_associated(options%window) .and. options%inbox_bytes == 1048576, 'nor are these')
  options%device = 'soft'
  options%window_bytes = 4096
  options%timeout_ms = 20000
  call must(rdmaServer(listener, '127.0.0.1', 0), 'rdmaServer')
  call must(rdmaServerSetOptions(listener, options), 'rdmaServerSetOptions')
  call must(rdmaServerOnAccept(listener, on_accept, c_loc(count)), 'rdmaServerOnAccept')
  call must(rdmaServerOnMessage(listener, on_message, c_null_ptr), 'rdmaServerOnMessage')
  call must(rdmaServerOnDisconnect(listener, on_disconnect, c_null_ptr), 'rdmaServerOnDisconnect')
  call check(rdmaServerPort(listener) < 0, 'a port before the start')
  call must(rdmaServerStart(listener), 'rdmaServerStart')
  call check(rdmaServerStart(listener) == RDMA_ERR_BUSY, 'it can be started twice')
  call check(index(rdmaErrorDetail(), 'runs already') > 0, 'the detail is: '//rdmaErrorDetail())
  call check(index(rdmaErrorText(RDMA_ERR_BUSY), ' ') > 0, 'no text for a code')

  conn = rdmaConn()
  options%device = 'no such device'
  call must(rdmaConnSetOptions(conn, options), 'rdmaConnSetOptions')
  call check(rdmaConnect(conn, '', rdmaServerPort(listener)) /= RDMA_OK, 'it finds no such device')
  call check(len(rdmaErrorDetail()) > 20, 'the detail is: '//rdmaErrorDetail())
  options%device = 'soft'
  call must(rdmaConnSetOptions(conn, options), 'rdmaConnSetOptions')
  call must(rdmaConnect(conn, '127.0.0.1   ', rdmaServerPort(listener)), 'rdmaConnect')
  call check(rdmaConnIsConnected(conn), 'it is not connected')
  call check(rdmaConnPeerWindowBytes(conn) == 4096, 'the window is not as the options have it')
  call check(c_associated(rdmaConnWindow(conn, length)) .and. length == 4096, 'nor is this one')
  call must(rdmaConnSetTimeout(conn, 10000), 'rdmaConnSetTimeout')

  ! Arrays, sections that are not contiguous, scalars.
  matrix = reshape([(i, i=1, 12)], [3, 4])
  call check(rdmaConnSend(conn, matrix(2, :), 16_c_size_t) == 16, 'rdmaConnSend: '//rdmaErrorDetail())
  call must(rdmaConnRecv(conn, back, c_sizeof(back), message, -1), 'rdmaConnRecv')
  call check(all(back == [2, 5, 8, 11]) .and. message%length == 16, 'a row is not sent')
  call check(message%kind == RDMA_MESSAGE .and. message%has_imm == 1, 'it is no message')
  call check(count == 1, 'the accept callback has another pointer')
  call check(rdmaConnWrite(conn, four, c_sizeof(four)) == 16, 'rdmaConnWrite: '//rdmaErrorDetail())
  call check(rdmaConnWriteAt(conn, 4_c_size_t, 22, 4_c_size_t) == 4, 'rdmaConnWriteAt: '//rdmaErrorDetail())
  call must(rdmaConnRead(conn, matrix(3, :), c_sizeof(four)), 'rdmaConnRead')
  call check(all(matrix(3, :) == [11, 22, 13, 14]) .and. all(matrix(1, :) == [1, 4, 7, 10]), 'a row is not read')
  call must(rdmaConnReadAt(conn, 8_c_size_t, scalar, 4_c_size_t), 'rdmaConnReadAt')
  call check(scalar == 13, 'a scalar is not read')
  call check(rdmaConnReadAt(conn, 4094_c_size_t, scalar, 4_c_size_t) == RDMA_ERR_OUT_OF_RANGE, 'beyond the window')
  call check(rdmaConnError(conn) == RDMA_ERR_OUT_OF_RANGE, 'the connection does not tell')
  call must(rdmaConnWriteWithImmAt(conn, 77, 64_c_size_t, four, 8_c_size_t), 'rdmaConnWriteWithImmAt')
  call must(rdmaConnRecv(conn, back, c_sizeof(back), message, 10000), 'rdmaConnRecv')
  call check(writes == 1 .and. message%has_imm == 1 .and. message%imm == 77, 'the write is not told')
  call must(rdmaConnWriteWithImm(conn, 78, four, 8_c_size_t), 'rdmaConnWriteWithImm')
  call must(rdmaConnRecv(conn, back, c_sizeof(back), message, 10000), 'rdmaConnRecv')
  call check(message%imm == 78 .and. back(1) == 11, 'nor this one')
  call check(rdmaConnRecv(conn, back, c_sizeof(back), message, 0) == RDMA_ERR_TIMED_OUT, 'more came than was sent')
  call check(rdmaConnDiscarded(accepted) == 0, 'a message was discarded')

  ! Registered memory under a name.
  there => rdmaServerRegMem(listener, 4096_c_size_t)
  call check(associated(there), 'rdmaServerRegMem: '//rdmaErrorDetail())
  call check(there%length == 4096 .and. there%access == RDMA_ACCESS_REMOTE_ALL, 'it is not as asked for')
  call c_f_pointer(there%addr, remote, [1024])
  remote(1:4) = four
  call must(rdmaServerPublish(listener, 'numbers', there), 'rdmaServerPublish')
  call must(rdmaConnLookup(conn, 'numbers', window, -1), 'rdmaConnLookup')
  call check(window%length == 4096 .and. window%rkey == there%rkey, 'it is another window')
  here => rdmaConnRegMem(conn, 4096_c_size_t)
  call check(associated(here), 'rdmaConnRegMem: '//rdmaErrorDetail())
  call c_f_pointer(here%addr, local, [1024])
  call must(rdmaSyncReadSignaled(conn, rdmaAddress(local), here%lkey, window%addr, window%rkey, 16), &
            'rdmaSyncReadSignaled')
  call check(all(local(1:4) == four), 'it is not read')
  local(1) = 99
  call must(rdmaSyncWriteSignaled(conn, rdmaAddress(local(1)), here%lkey, window%addr + 8, window%rkey, 4), &
            'rdmaSyncWriteSignaled')
  call check(remote(3) == 99, 'it is not written')
  remote(1:2) = [7, 0]
  call must(rdmaSyncFetchAdd(conn, window%addr, window%rkey, 3_c_int64_t, old), 'rdmaSyncFetchAdd')
  call check(old == 7 .and. remote(1) == 10, 'it is not added')
  call must(rdmaSyncCompareSwap(conn, window%addr, window%rkey, 10_c_int64_t, 4_c_int64_t, old), 'rdmaSyncCompareSwap')
  call check(old == 10 .and. remote(1) == 4, 'it is not swapped')
  call must(rdmaStartRead(conn, rdmaAddress(local(9)), here%lkey, window%addr, window%rkey, 8, 42_c_int64_t), &
            'rdmaStartRead')
  call must(rdmaConnComplete(conn, completion, -1), 'rdmaConnComplete')
  call check(completion%cookie == 42 .and. completion%operation == RDMA_READ, 'another one')
  call must(completion%code, 'its completion')
  call check(local(9) == 4, 'the started one reads nothing')
  call check(rdmaConnComplete(conn, completion, 0) == RDMA_ERR_NOT_FOUND, 'one more is under way')
  call must(rdmaConnReleaseWindow(conn, window), 'rdmaConnReleaseWindow')
  call must(rdmaServerPublish(listener, 'numbers'), 'a name is not taken back')
  call must(rdmaConnPeerWindow(conn, default_window), 'rdmaConnPeerWindow')
  call check(default_window%length == 4096, 'the default window is not the default window')
  mine => rdmaConnRegister(conn, c_loc(word), c_sizeof(word), RDMA_ACCESS_LOCAL)
  call check(associated(mine), 'rdmaConnRegister: '//rdmaErrorDetail())
  call must(rdmaSyncWriteSignaled(conn, rdmaAddress(word), mine%lkey, default_window%addr, default_window%rkey, 8), &
            'rdmaSyncWriteSignaled')
  call must(rdmaConnReadAt(conn, 0_c_size_t, scalar, 4_c_size_t), 'rdmaConnReadAt')
  call check(scalar == 5, 'the default window has another word')
  call must(rdmaConnDeregMem(conn, mine), 'rdmaConnDeregMem')
  mine => rdmaConnWindowMemory(conn)
  call check(associated(mine), 'no memory of the window')
  call check(mine%length == 4096, 'the window has another length')
  ! Without the privilege this is refused, and everything else goes on.
  i = rdmaPAExport(conn, mine, physical)
  call check(i == RDMA_OK .or. i == RDMA_ERR_PERMISSION, 'rdmaPAExport: '//rdmaErrorDetail())

  call rdmaConnClose(conn)
  do i = 1, 20000
    if (departures > 0) exit
    call wait_a_little()
  end do
  call check(departures == 1 .and. why /= RDMA_OK, 'nobody is told of the end')
  call rdmaConnClose(accepted)
  call must(rdmaServerStop(listener), 'rdmaServerStop')
  call rdmaServerRelease(listener)
  call check(greetings == 3, 'not all were answered')
contains
  subroutine wait_a_little()
    interface
      function poll(fds, count, timeout_ms) bind(C)
        import
        type(c_ptr), value :: fds
        integer(c_long), value :: count
        integer(c_int), value :: timeout_ms
        integer(c_int) :: poll
      end function
    end interface
    integer(c_int) :: none
    none = poll(c_null_ptr, 0_c_long, 1)
  end subroutine
end program calls
