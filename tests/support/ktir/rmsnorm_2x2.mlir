// SPDX-License-Identifier: Apache-2.0
// RMS norm of 32 rows of 512 elements on a 2 x 2 grid: axis 0 splits the rows, axis 1 the columns, so that the two tiles
// that share rows add up their sums of squares. Flat ids count along axis 0 first: tiles 0 and 2 share rows.

#x = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#w = affine_set<(d0) : (d0 >= 0, -d0 + 511 >= 0)>
#block = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 255 >= 0)>
#wblock = affine_set<(d0) : (d0 >= 0, -d0 + 255 >= 0)>
#order1 = affine_map<(d0) -> (d0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>
#groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>
#members = affine_set<(i)[g] : ((i - g) mod 2 == 0)>

func.func @rmsnorm_2x2(%x: index, %weight: index, %y: index, %eps: f32) attributes {grid = [2, 2]} {
  %c16 = arith.constant 16 : index
  %c256 = arith.constant 256 : index
  %zero = arith.constant dense<0.0> : tensor<16xf32>
  %scale = arith.constant 0.001953125 : f32
  %i, %j = ktdp.get_compute_tile_id : index, index
  %row = arith.muli %i, %c16 : index
  %column = arith.muli %j, %c256 : index
  %X = ktdp.construct_memory_view %x, sizes: [32, 512], strides: [512, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<32x512xf16>
  %W = ktdp.construct_memory_view %weight, sizes: [512], strides: [1] {coordinate_set = #w, memory_space = #ktdp.memory_space<global>} : memref<512xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [32, 512], strides: [512, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<32x512xf16>
  %xt = ktdp.construct_access_tile %X[%row, %column] {access_tile_set = #block, access_tile_order = #order2} : memref<32x512xf16> -> <16x256xindex>
  %wt = ktdp.construct_access_tile %W[%column] {access_tile_set = #wblock, access_tile_order = #order1} : memref<512xf16> -> <256xindex>
  %yt = ktdp.construct_access_tile %Y[%row, %column] {access_tile_set = #block, access_tile_order = #order2} : memref<32x512xf16> -> <16x256xindex>
  %v16 = ktdp.load %xt : <16x256xindex> -> tensor<16x256xf16>
  %w16 = ktdp.load %wt : <256xindex> -> tensor<256xf16>
  %v = arith.extf %v16 : tensor<16x256xf16> to tensor<16x256xf32>
  %w = arith.extf %w16 : tensor<256xf16> to tensor<256xf32>
  %squares = arith.mulf %v, %v : tensor<16x256xf32>
  %part = linalg.reduce { arith.addf } ins(%squares : tensor<16x256xf32>) outs(%zero : tensor<16xf32>) dimensions = [1]
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #members -> <(tensor<16xf32>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %part : tensor<16xf32>
  }
  %sum = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = #members, identity(%zero : tensor<16xf32>)
      : <(tensor<16xf32>), groups = #groups> -> tensor<16xf32> {
  ^bb0(%l: tensor<16xf32>, %r: tensor<16xf32>):
    %t = arith.addf %l, %r : tensor<16xf32>
    ktdp.yield_reduced %t : tensor<16xf32>
  }
  %scales = tensor.splat %scale : tensor<16xf32>
  %epsilons = tensor.splat %eps : tensor<16xf32>
  %mean = arith.mulf %sum, %scales : tensor<16xf32>
  %shifted = arith.addf %mean, %epsilons : tensor<16xf32>
  %rs1 = math.rsqrt %shifted : tensor<16xf32>
  %wide = tensor.empty() : tensor<16x256xf32>
  %rs = linalg.broadcast ins(%rs1 : tensor<16xf32>) outs(%wide : tensor<16x256xf32>) dimensions = [1]
  %ws = linalg.broadcast ins(%w : tensor<256xf32>) outs(%wide : tensor<16x256xf32>) dimensions = [0]
  %n = arith.mulf %v, %rs : tensor<16x256xf32>
  %out = arith.mulf %n, %ws : tensor<16x256xf32>
  %half = arith.truncf %out : tensor<16x256xf32> to tensor<16x256xf16>
  ktdp.store %half, %yt : tensor<16x256xf16>, <16x256xindex>
  return
}
