! A message there and back, then numbers written into the other side's memory and read from it.
! usage: hello                     both sides in this program
!        hello PORT [ADDRESS]      the other side is "pingpong serve", or any program that echoes
module echo
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
contains
  subroutine echo_message(conn, message, user) bind(C)
    type(rdma_conn), value :: conn
    type(rdma_incoming), intent(in) :: message
    type(c_ptr), value :: user
    character(kind=c_char), pointer :: bytes(:)
    call c_f_pointer(message%data, bytes, [message%length])
    if (rdmaConnSend(conn, bytes, message%length) == 0) print *, rdmaErrorDetail()
  end subroutine

  subroutine check(what, code)
    character(len=*), intent(in) :: what
    integer(c_int), intent(in) :: code
    if (code == RDMA_OK) return
    print *, what, ': ', rdmaErrorText(code)
    print *, rdmaErrorDetail()
    stop 1, quiet=.true.
  end subroutine
end module echo

program hello
  use echo
  implicit none
  type(rdma_listener) :: listener
  type(rdma_conn) :: conn
  type(rdma_options) :: options
  type(rdma_incoming) :: message
  character(len=256) :: argument, address
  character(len=5) :: out = 'hello', back
  real(c_double) :: numbers(1000), copy(1000)
  integer(c_int) :: port
  integer :: i

  call rdmaOptionsInit(options)
  call get_environment_variable('VERBENA_NIC', options%device) ! 'soft', 'mlx5_0'; else what there is.
  address = '' ! This host.
  if (command_argument_count() > 0) then
    call get_command_argument(1, argument)
    read (argument, *) port
    call get_command_argument(2, address)
  else
    call check('rdmaServer', rdmaServer(listener, '', 0))
    call check('rdmaServerSetOptions', rdmaServerSetOptions(listener, options))
    call check('rdmaServerOnMessage', rdmaServerOnMessage(listener, echo_message, c_null_ptr))
    call check('rdmaServerStart', rdmaServerStart(listener))
    port = rdmaServerPort(listener)
  end if

  conn = rdmaConn()
  call check('rdmaConnSetOptions', rdmaConnSetOptions(conn, options))
  call check('rdmaConnect', rdmaConnect(conn, address, port))

  if (rdmaConnSend(conn, out, 5_c_size_t) == 0) call check('rdmaConnSend', rdmaConnError(conn))
  call check('rdmaConnRecv', rdmaConnRecv(conn, back, 5_c_size_t, message, -1))
  if (back /= out) error stop 'the message came back wrong'

  numbers = [(sqrt(real(i, c_double)), i=1, size(numbers))]
  if (rdmaConnWrite(conn, numbers, c_sizeof(numbers)) == 0) call check('rdmaConnWrite', rdmaConnError(conn))
  call check('rdmaConnRead', rdmaConnRead(conn, copy, c_sizeof(copy)))
  if (any(copy /= numbers)) error stop 'the numbers came back wrong'
  print '(a, i0, a)', back//' and ', size(copy), ' numbers came back'

  call rdmaConnClose(conn)
  call rdmaServerRelease(listener)
end program hello
