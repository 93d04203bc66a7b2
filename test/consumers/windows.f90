! Named windows over parts of memory, a node, started atomics, shared windows, the log and the version: between a server
! and its clients in one program, each on the NIC that VERBENA_NIC names.
module lines
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), volatile :: listening = 0, others = 0
contains
  subroutine on_line(level, line, user) bind(C)
    integer(c_int), value :: level
    type(c_ptr), value :: line
    type(c_ptr), value :: user
    if (level == VERBENA_LOG_INFO .and. index(verbenaLogLine(line), 'listening on') == 1) then
      listening = listening + 1
    else
      others = others + 1
    end if
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
end module lines

program windows
  use lines
  implicit none
  integer, parameter :: kMostStarted = 64
  type(rdma_node) :: node
  type(rdma_node_options) :: node_options
  type(rdma_listener) :: listener
  type(rdma_options) :: options
  type(rdma_conn) :: conns(2)
  type(rdma_memory), pointer :: numbers, own
  type(rdma_window) :: middle, word, all_numbers
  type(rdma_completion) :: completion
  integer(c_int64_t), pointer :: there(:), shared(:)
  integer(c_int64_t) :: back(4), i
  integer(c_size_t) :: length
  integer(c_int) :: code, started

  print '(2a)', 'verbena ', verbena_version()
  call check(verbena_version_number() >= 100, 'the version number is below 0.1.0')

  call rdmaOptionsInit(options)
  call check(options%gid_index == -1 .and. options%shared_window == 0, 'these are not the defaults of C')
  call check(.not. allocated(options%allowed_uids), 'somebody is allowed by default')
  call check(.not. c_associated(options%node%handle), 'there is a node by default')
  call rdmaNodeOptionsInit(node_options)
  call check(node_options%shards == 1 .and. node_options%connections == 256, 'the node has not the defaults of C')
  call get_environment_variable('VERBENA_NIC', options%device)
  if (options%device == '') options%device = 'soft'
  options%timeout_ms = 20000
  options%window_bytes = 4096
  options%shared_window = 1
  options%allowed_uids = [12345, 12346]

  ! Refused before anything is opened.
  listener = rdma_listener()
  call must(rdmaServer(listener, '', 0), 'rdmaServer')
  options%gid_index = 256
  call check(rdmaServerSetOptions(listener, options) == RDMA_ERR_BAD_ARGUMENT, 'gid_index 256 is taken')
  call check(index(rdmaErrorDetail(), 'gid_index') > 0, 'the detail is: '//rdmaErrorDetail())
  options%gid_index = -1
  options%key_name = 'of no file'
  call must(rdmaServerSetOptions(listener, options), 'rdmaServerSetOptions')
  call check(rdmaServerStart(listener) == RDMA_ERR_BAD_ARGUMENT, 'a key_name without a key_file is taken')
  call check(index(rdmaErrorDetail(), 'key_file') > 0, 'the detail is: '//rdmaErrorDetail())
  options%key_name = ''
  call check(options%key_file == '', 'there is a key_file by default')
  call check(rdmaServerAddress(listener) == '', 'it has an address before it runs')
  node_options%device = options%device
  node_options%cpus = [0, 0]
  call check(rdmaNode(node, node_options) == RDMA_ERR_BAD_ARGUMENT, 'two cores for one shard are taken')
  deallocate (node_options%cpus)

  call must(rdmaNode(node, node_options), 'rdmaNode')
  options%node = node
  call must(rdmaServerSetOptions(listener, options), 'rdmaServerSetOptions')
  call verbena_set_log(on_line)
  call must(rdmaServerStart(listener), 'rdmaServerStart')
  call verbena_set_log()
  call check(listening == 1 .and. others == 0, 'the log has other lines than that of the start')
  call check(len(rdmaServerAddress(listener)) > 0, 'it has no address: '//rdmaErrorDetail())
  call check(c_associated(rdmaServerWindow(listener, length)) .and. length == 4096, 'the listener has no window')
  call c_f_pointer(rdmaServerWindow(listener, length), shared, [512])

  ! Memory of the node, of which clients find parts.
  numbers => rdmaNodeRegMem(node, 4096_c_size_t)
  call check(associated(numbers), 'rdmaNodeRegMem: '//rdmaErrorDetail())
  call c_f_pointer(numbers%addr, there, [512])
  there = [(i, i=1, 512)]
  call must(rdmaNodePublish(node, 'all', numbers), 'rdmaNodePublish')
  call must(rdmaNodePublishPart(node, 'middle', numbers, 1024_c_size_t, 64_c_size_t), 'rdmaNodePublishPart')
  call must(rdmaNodePublishPart(node, 'word', numbers, 8_c_size_t, 8_c_size_t), 'rdmaNodePublishPart')
  call check(rdmaNodePublishPart(node, 'more', numbers, 4090_c_size_t, 8_c_size_t) == RDMA_ERR_OUT_OF_RANGE, &
             'a part beyond the memory is published')

  ! What the listener alone publishes.
  own => rdmaServerRegMem(listener, 4096_c_size_t)
  call check(associated(own), 'rdmaServerRegMem: '//rdmaErrorDetail())
  call must(rdmaServerPublishPart(listener, 'own', own, 64_c_size_t, 128_c_size_t), 'rdmaServerPublishPart')

  do started = 1, 2
    conns(started) = rdmaConn()
    call must(rdmaConnSetOptions(conns(started), options), 'rdmaConnSetOptions')
    call must(rdmaConnect(conns(started), rdmaServerAddress(listener), rdmaServerPort(listener)), 'rdmaConnect')
  end do
  do started = 1, 2
    call must(rdmaConnLookup(conns(started), 'middle', middle, -1), 'rdmaConnLookup')
    call check(middle%length == 64 .and. middle%rkey == numbers%rkey, 'it is another window')
    own => rdmaConnRegMem(conns(started), 4096_c_size_t)
    call check(associated(own), 'rdmaConnRegMem: '//rdmaErrorDetail())
    call c_f_pointer(own%addr, there, [512])
    call must(rdmaSyncReadSignaled(conns(started), rdmaAddress(there), own%lkey, middle%addr, middle%rkey, 32), &
              'rdmaSyncReadSignaled')
    call check(all(there(1:4) == [129, 130, 131, 132]), 'the part is not where it should be')
    call check(rdmaSyncReadSignaled(conns(started), rdmaAddress(there), own%lkey, middle%addr + 32, middle%rkey, 64) &
               == RDMA_ERR_OUT_OF_RANGE, 'more than the part is read')
  end do
  call must(rdmaConnLookup(conns(1), 'own', middle, -1), 'rdmaConnLookup')
  call check(middle%length == 128, 'the window of the listener is another one')
  ! A client publishes, too. Its peer has no call under way, so the name is only checked and taken back here.
  call must(rdmaConnPublishPart(conns(2), 'mine', own, 0_c_size_t, 64_c_size_t), 'rdmaConnPublishPart')
  call must(rdmaConnPublish(conns(2), 'mine'), 'rdmaConnPublish')

  ! Started atomics: as many as there may be, each with what it found.
  call must(rdmaConnLookup(conns(1), 'word', word, -1), 'rdmaConnLookup')
  started = 0
  do
    code = rdmaStartFetchAdd(conns(1), word%addr, word%rkey, 10_c_int64_t, int(started, c_int64_t))
    if (code == RDMA_ERR_AGAIN) exit
    call must(code, 'rdmaStartFetchAdd')
    started = started + 1
    call check(started <= kMostStarted, 'more are under way than may be')
  end do
  call check(started == kMostStarted, 'fewer may be under way than should')
  do i = 0, kMostStarted - 1
    call must(rdmaConnComplete(conns(1), completion, -1), 'rdmaConnComplete')
    call must(completion%code, 'its completion')
    call check(completion%cookie == i .and. completion%operation == RDMA_ATOMIC, 'it is another one')
    call check(completion%old == 2 + 10 * i, 'it has found something else')
  end do
  call must(rdmaStartCompareSwap(conns(1), word%addr, word%rkey, 642_c_int64_t, 7_c_int64_t, 99_c_int64_t), &
            'rdmaStartCompareSwap')
  call must(rdmaConnComplete(conns(1), completion, -1), 'rdmaConnComplete')
  call check(completion%cookie == 99 .and. completion%old == 642, 'it has not swapped')
  call must(rdmaConnLookup(conns(2), 'all', all_numbers, -1), 'rdmaConnLookup')
  call check(all_numbers%length == 4096, 'all is not all')
  call must(rdmaSyncFetchAdd(conns(2), all_numbers%addr + 8, all_numbers%rkey, 0_c_int64_t, back(1)), &
            'rdmaSyncFetchAdd')
  call check(back(1) == 7, 'the other client finds another number')

  ! One default window for both.
  call check(rdmaConnWrite(conns(1), [41_c_int64_t], 8_c_size_t) == 8, 'rdmaConnWrite: '//rdmaErrorDetail())
  call check(rdmaConnWriteAt(conns(2), 8_c_size_t, [42_c_int64_t], 8_c_size_t) == 8, 'rdmaConnWriteAt')
  call must(rdmaConnRead(conns(2), back, 16_c_size_t), 'rdmaConnRead')
  call check(all(back(1:2) == [41, 42]) .and. all(shared(1:2) == [41, 42]), 'the window is not shared')

  call rdmaConnClose(conns(1))
  call rdmaConnClose(conns(2))
  call must(rdmaNodeDeregMem(node, numbers), 'rdmaNodeDeregMem')
  call must(rdmaServerStop(listener), 'rdmaServerStop')
  call check(.not. c_associated(rdmaServerWindow(listener, length)) .and. length == 0, 'it has a window yet')
  call rdmaServerRelease(listener)
  call rdmaNodeRelease(node)
end program windows
